"""Findings for the top of the operations page, as sentences: are callers served, and if not, why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from config.tiers import Tier
from tasks.fleet.process_register import RoleRow
from tasks.fleet.queue_reader import ShardRow, Waiting
from tasks.fleet.registry_reader import ExecutorRow, QueueRow, WorkerRow, breakers, ready_models
from tasks.observability.error_summary import error_summary
from tasks.observability.slo import Objective

# Google's SRE workbook: at this rate an hour uses up a fiftieth of thirty days' budget, and somebody is paged.
PAGING_BURN_RATE = 14.4
_BUSY = 0.9
# The share of a tier's requests that callers notice at once, whatever its budget; of very few it may be chance.
_MANY = 0.05
_CHANCE = 10


class Finding(msgspec.Struct, frozen=True):
    """`level` is `bad` when callers notice it now, `warn` when they soon may; `where` is the section with the details.

    `tile` is the tile at the top of the page about the same subject, if any: it gets the finding's colour.
    """

    level: str
    text: str
    where: str
    tile: str = ""


class Lately(msgspec.Struct, frozen=True):
    """Per tier, the requests `asked` and `refused` in the last 15 seconds; requests that failed for good in the last
    five minutes, and healthy workers five minutes ago. From the register of processes: the `silent` ones, the `roles`
    that are alive, and the differences in configuration.
    """

    asked: dict[Tier, int] = {}
    refused: dict[Tier, int] = {}
    given_up: int = 0
    healthy_before: int = 0
    silent: tuple[RoleRow, ...] = ()
    roles: frozenset[str] = frozenset({"ops"})
    differences: tuple[str, ...] = ()


class Standing(msgspec.Struct, frozen=True):
    """A tier's results against its objective over the last five minutes and the last hour."""

    latency_ms: float
    target: float
    attained: dict[str, float]
    burn: dict[str, float]
    counted: dict[str, int]


def findings(
    models: Sequence[str],
    waiting: Waiting,
    workers: Sequence[WorkerRow],
    healthy: Sequence[WorkerRow],
    standings: Mapping[Tier, Standing],
    objectives: Mapping[Tier, Objective],
    lately: Lately,
    paused: Mapping[str, frozenset[Tier]] | None = None,
) -> list[Finding]:
    """The findings, worst first; none when all is well. `paused` are the tiers that operators have paused, by model."""
    queues = waiting.queues
    found = [
        *_missing(models, workers, healthy),
        *_shards(waiting.shards, healthy),
        *_fewer(lately.healthy_before, len(healthy)),
        *_paused(paused or {}, queues),
        *_refused(lately),
        *_burning(standings),
        *_waiting(queues, objectives),
        *_ill(workers),
        *_broken(healthy),
        *_busy(healthy, queues),
        *_given_up(lately),
        *_processes(lately),
    ]
    return sorted(found, key=lambda each: each.level != "bad")


def status(
    models: Sequence[str], workers: Sequence[WorkerRow], healthy: Sequence[WorkerRow], shards: Sequence[ShardRow] = ()
) -> str:
    """`healthy`, `degraded` or `unhealthy`, as in `/internal/health`."""
    served = ready_models(healthy)
    # The home, the last of them, has plain Celery clients' requests alone.
    if not served or (shards and all(each.error for each in shards[:-1])):
        return "unhealthy"
    if any(each.error for each in shards):
        return "degraded"
    missing = [name for name in models if name not in served]
    broken = any(state != "closed" for state in breakers(healthy, models).values())
    ill = any(each.health != "healthy" for each in workers)
    return "degraded" if missing or broken or ill or len(healthy) < len(workers) else "healthy"


def _missing(models: Sequence[str], workers: Sequence[WorkerRow], healthy: Sequence[WorkerRow]) -> list[Finding]:
    if not healthy:
        text = "No worker takes batches: every request waits until its deadline."
        return [Finding("bad", text, "workers", "Workers")]
    served = ready_models(healthy)
    found = [
        Finding("bad", f"{name} is not served: none of its executors is ready.", "workers", "Executors busy")
        for name in models
        if name not in served
    ]
    drained = [each for each in workers if each.state in {"draining", "drained"}]
    leaving = [each for each in workers if each.state != "running" and each not in drained]
    known = {each.id for each in (*healthy, *leaving, *drained)}
    silent = [each for each in workers if each.id not in known]
    for which, rest in (
        (silent, "silent: no heartbeat arrives"),
        (drained, "drained: no more batches are claimed there"),
        (leaving, "shutting down"),
    ):
        if which:
            found.append(Finding("warn", f"{_named(which)} {rest}.", "workers", "Workers"))
    return found


def _shards(shards: Sequence[ShardRow], healthy: Sequence[WorkerRow]) -> list[Finding]:
    """Shards that do not answer, and those that no worker serves although there are workers."""
    down = [each for each in shards if each.error]
    found = []
    if down:
        names = f"{'Shard' if len(down) == 1 else 'Shards'} {', '.join(each.name for each in down)}"
        text = (
            f"{names} {'does' if len(down) == 1 else 'do'} not answer ({error_summary(down[0].error, 160)}): callers "
            "whose requests are there are refused, and what waits there is in none of these sums."
        )
        found.append(Finding("bad", text, "queues", "Waiting"))
    for each in shards:
        if healthy and not each.error and not each.workers:
            level, depth = ("bad" if each.depth else "warn"), f"{each.depth:,} waiting"
            found.append(Finding(level, f"No worker serves shard {each.name}: {depth}.", "queues", "Waiting"))
    return found


def _fewer(before: int, healthy: int) -> list[Finding]:
    """Workers lost in the last five minutes: they leave the register, so only the history knows of them."""
    if not 0 < healthy < before:
        return []
    return [
        Finding("warn", f"Only {healthy} of the {before} workers of five minutes ago are left.", "workers", "Workers")
    ]


def _refused(lately: Lately) -> list[Finding]:
    """Refusals: a large hourly budget hides that a tier's callers are turned away now."""
    found = []
    for tier, refused in lately.refused.items():
        share = refused / max(1, lately.asked.get(tier, 0))
        if share >= _MANY / 5:
            level = "bad" if share >= _MANY and refused >= _CHANCE else "warn"
            text = f"{tier.value}: {share:.0%} of the requests of the last 15 seconds were refused at admission."
            found.append(Finding(level, text, "requests", "Not served"))
    return found


def _processes(lately: Lately) -> list[Finding]:
    """Missing and silent processes; workers have a register of their own."""
    found = [Finding("warn", f"{each}.", "processes") for each in lately.differences]
    found += [
        Finding("warn", f"{each.name} (pid {each.pid}) is silent: no heartbeat arrives.", "processes")
        for each in lately.silent
        if each.role != "worker"
    ]
    if "ops" not in lately.roles:
        found.append(Finding("warn", "No ops worker runs: API keys and the ledger are not updated.", "processes"))
    return found


def _given_up(lately: Lately) -> list[Finding]:
    if lately.given_up <= 0:
        return []
    given_up = "1 request was" if lately.given_up == 1 else f"{lately.given_up:,} requests were"
    return [Finding("warn", f"{given_up} given up in the last five minutes.", "dead", "Dead letters")]


def _paused(paused: Mapping[str, frozenset[Tier]], queues: Sequence[QueueRow]) -> list[Finding]:
    """Paused models, since a forgotten pause looks like an outage."""
    found = []
    for model, tiers in paused.items():
        waiting = sum(row.depth for row in queues if row.model == model and Tier(row.tier) in tiers)
        which = "" if len(tiers) == len(Tier) else f" for {', '.join(tier.value for tier in Tier if tier in tiers)}"
        text = f"{model} is paused{which}: {waiting:,} waiting until it is resumed or their deadlines pass."
        found.append(Finding("bad" if waiting else "warn", text, "models", "Waiting"))
    return found


def _burning(standings: Mapping[Tier, Standing]) -> list[Finding]:
    found = []
    for tier, each in standings.items():
        burn = each.burn["5m"]
        if burn > 1:
            level = "bad" if burn >= PAGING_BURN_RATE or each.attained["5m"] <= 1 - _MANY else "warn"
            text = (
                f"{tier.value}: {each.attained['5m']:.1%} of the last five minutes' requests met the objective of "
                f"{each.target:.1%} within {each.latency_ms:g} ms; the error budget burns at "
                f"{burn:.1f} times the allowed rate."
            )
            found.append(Finding(level, text, "tiers", "Not served"))
    return found


def _waiting(queues: Sequence[QueueRow], objectives: Mapping[Tier, Objective]) -> list[Finding]:
    return [
        Finding(
            "bad",
            f"{row.model}.{row.tier}: {row.depth:,} waiting, the oldest for {row.oldest_ms / 1000:.1f} s.",
            "queues",
            "Waiting",
        )
        for row in queues
        if row.depth and row.oldest_ms / 1000 > objectives[Tier(row.tier)].latency_s
    ]


def _ill(workers: Sequence[WorkerRow]) -> list[Finding]:
    """Workers whose GPUs are not healthy."""
    return [
        Finding("warn", f"{each.name} is {each.health}: {'; '.join(each.reasons)}.", "workers", "Workers")
        for each in workers
        if each.health != "healthy"
    ]


def _broken(healthy: Sequence[WorkerRow]) -> list[Finding]:
    found = []
    for worker in healthy:
        for each in worker.models:
            if each.state == "failed":
                why = f": {error_summary(each.error, 160)}" if each.error else ""
                text = f"{each.executor} on {worker.name} does not start{why}"
                found.append(Finding("warn", text, "workers", "Executors busy"))
            elif each.state == "starting" and each.error:
                text = f"{each.executor} on {worker.name} is being replaced: {error_summary(each.error, 160)}"
                found.append(Finding("warn", text, "workers", "Executors busy"))
            elif each.breaker != "closed":
                text = f"{each.executor} on {worker.name}: breaker {each.breaker}, several batches in a row failed."
                found.append(Finding("warn", text, "workers", "Executors busy"))
    return found


def _busy(healthy: Sequence[WorkerRow], queues: Sequence[QueueRow]) -> list[Finding]:
    """Models without spare capacity.

    Busy executors alone do not show it: a policy that does not wait keeps executors busy with small batches long before
    the limit, and the batches grow as more requests arrive.
    """
    ready: dict[str, list[ExecutorRow]] = {}
    for worker in healthy:
        for each in worker.models:
            if each.state == "ready":
                ready.setdefault(each.model, []).append(each)
    found = []
    for model, rows in ready.items():
        busy = sum(each.busy for each in rows) / len(rows)
        rates = [each.rate_rps for each in rows if each.rate_rps]
        can_rps = sum(rates) if len(rates) == len(rows) else 0.0
        come_rps = sum(row.arrival_rps for row in queues if row.model == model)
        if busy > _BUSY and come_rps >= _BUSY * can_rps:
            known = (
                f": {come_rps:,.0f} requests a second are admitted, and their capacity is {can_rps:,.0f}"
                if can_rps
                else ""
            )
            found.append(
                Finding(
                    "warn", f"{model}: executors are busy {busy:.0%} of the time{known}.", "workers", "Executors busy"
                )
            )
    return found


def _named(workers: Sequence[WorkerRow]) -> str:
    """The workers' number, with the name if it is one, as the subject of a sentence."""
    count = len(workers)
    return f"1 worker ({workers[0].name}) is" if count == 1 else f"{count} workers are"

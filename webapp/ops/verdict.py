"""What somebody who looks at the page must know first, in sentences: are callers served, and if not, why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from config.tiers import Tier
from tasks.fleet import ExecutorRow, QueueRow, WorkerRow, breakers, ready_models
from tasks.slo import Objective

# Google's SRE workbook: at this rate an hour uses up a fiftieth of thirty days' budget, and somebody is woken.
PAGING_BURN_RATE = 14.4
_BUSY = 0.9


class Finding(msgspec.Struct, frozen=True):
    """`level` is `bad` when callers notice, `warn` when they soon may; `where` is the section that shows more."""

    level: str
    text: str
    where: str


class Standing(msgspec.Struct, frozen=True):
    """How a tier does against its objective over the last five minutes and the last hour."""

    latency_ms: float
    target: float
    attained: dict[str, float]
    burn: dict[str, float]
    counted: dict[str, int]


def findings(
    models: Sequence[str],
    queues: Sequence[QueueRow],
    workers: Sequence[WorkerRow],
    healthy: Sequence[WorkerRow],
    standings: Mapping[Tier, Standing],
    objectives: Mapping[Tier, Objective],
    before: int = 0,
    paused: Mapping[str, frozenset[Tier]] | None = None,
) -> list[Finding]:
    """The worst first; none when all is well. `before` is how many workers were healthy five minutes ago, `paused` what
    operators have stopped, by model.
    """
    found = [
        *_missing(models, workers, healthy),
        *_fewer(before, len(healthy)),
        *_paused(paused or {}, queues),
        *_burning(standings),
        *_waiting(queues, objectives),
        *_broken(healthy),
        *_busy(healthy, queues),
    ]
    return sorted(found, key=lambda each: each.level != "bad")


def status(models: Sequence[str], workers: Sequence[WorkerRow], healthy: Sequence[WorkerRow]) -> str:
    """`healthy`, `degraded` or `unhealthy`, as `/internal/health` says it."""
    served = ready_models(healthy)
    if not served:
        return "unhealthy"
    missing = [name for name in models if name not in served]
    broken = any(state != "closed" for state in breakers(healthy, models).values())
    return "degraded" if missing or broken or len(healthy) < len(workers) else "healthy"


def _missing(models: Sequence[str], workers: Sequence[WorkerRow], healthy: Sequence[WorkerRow]) -> list[Finding]:
    if not healthy:
        return [Finding("bad", "No worker takes batches: every request waits until its deadline.", "workers")]
    served = ready_models(healthy)
    found = [
        Finding("bad", f"{name} is not served: none of its executors is ready.", "workers")
        for name in models
        if name not in served
    ]
    drained = [each for each in workers if each.state in {"draining", "drained"}]
    leaving = [each for each in workers if each.state != "running" and each not in drained]
    silent = len(workers) - len(healthy) - len(leaving) - len(drained)
    if silent > 0:
        found.append(Finding("warn", f"{_number(silent, 'worker')} no longer heard of.", "workers"))
    if drained:
        found.append(Finding("warn", f"{_number(len(drained), 'worker')} drained: no more batches there.", "workers"))
    if leaving:
        found.append(Finding("warn", f"{_number(len(leaving), 'worker')} on the way out.", "workers"))
    return found


def _fewer(before: int, healthy: int) -> list[Finding]:
    """A worker that is gone leaves the register: only the history knows that it was there."""
    if not 0 < healthy < before:
        return []
    return [Finding("warn", f"{healthy} of {before} workers of five minutes ago are left.", "workers")]


def _paused(paused: Mapping[str, frozenset[Tier]], queues: Sequence[QueueRow]) -> list[Finding]:
    """A forgotten pause looks like an outage."""
    found = []
    for model, tiers in paused.items():
        waiting = sum(row.depth for row in queues if row.model == model and Tier(row.tier) in tiers)
        which = "" if len(tiers) == len(Tier) else f" for {', '.join(tier.value for tier in Tier if tier in tiers)}"
        text = f"{model} is paused{which}: {waiting:,} wait until it is resumed, or until their deadlines."
        found.append(Finding("bad" if waiting else "warn", text, "models"))
    return found


def _burning(standings: Mapping[Tier, Standing]) -> list[Finding]:
    found = []
    for tier, each in standings.items():
        burn = each.burn["5m"]
        if burn > 1:
            level = "bad" if burn >= PAGING_BURN_RATE else "warn"
            text = (
                f"{tier.value}: {each.attained['5m']:.1%} of the last five minutes met the objective of "
                f"{each.target:.1%} within {each.latency_ms:g} ms; the error budget burns at {burn:.1f} times its rate."
            )
            found.append(Finding(level, text, "tiers"))
    return found


def _waiting(queues: Sequence[QueueRow], objectives: Mapping[Tier, Objective]) -> list[Finding]:
    return [
        Finding(
            "bad",
            f"{row.model}.{row.tier}: {row.depth:,} wait, the oldest for {row.oldest_ms / 1000:.1f} s.",
            "queues",
        )
        for row in queues
        if row.depth and row.oldest_ms / 1000 > objectives[Tier(row.tier)].latency_s
    ]


def _broken(healthy: Sequence[WorkerRow]) -> list[Finding]:
    found = []
    for worker in healthy:
        for each in worker.models:
            if each.state == "failed":
                reason = (each.error or "").strip().splitlines()
                why = f": {reason[-1][:160]}" if reason else ""
                found.append(Finding("warn", f"{each.executor} does not start{why}", "workers"))
            elif each.state == "starting" and each.error:
                text = f"{each.executor} is being replaced: {each.error.strip().splitlines()[-1][:160]}"
                found.append(Finding("warn", text, "workers"))
            elif each.breaker != "closed":
                text = f"{each.executor} on {worker.hostname}: breaker {each.breaker}, batch after batch failed."
                found.append(Finding("warn", text, "workers"))
    return found


def _busy(healthy: Sequence[WorkerRow], queues: Sequence[QueueRow]) -> list[Finding]:
    """Which models have no room left.

    Busy alone is no sign of it: a policy that lets nobody wait keeps executors busy with small batches long before
    then, and these grow as more arrives.
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
            known = f": {come_rps:,.0f} requests a second are let in, and they can do {can_rps:,.0f}" if can_rps else ""
            found.append(Finding("warn", f"{model}: executors are busy {busy:.0%} of the time{known}.", "workers"))
    return found


def _number(count: int, noun: str) -> str:
    return f"1 {noun} is" if count == 1 else f"{count} {noun}s are"

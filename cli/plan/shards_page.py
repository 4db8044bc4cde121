"""`plan --shards`: batches, latency and processor time by the number of shards, and the fleet of a large load."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from batching.capacity.search import Objective
from batching.capacity.shards import LargeLoad, ShardedFleet, executors_for, fleet
from batching.simulator import Affine, Service, Shards
from cli.plan.simulate import LOCAL, make_maker

# The marks of docs/large-fleets.md.
ONE, MANY, BILL = "one-model", "many-models", "bill"
RPS = 100_000.0
MODELS = 50
_MAX_BATCH_SIZE = 64
_SLOW = Affine(0.05)
# The latency that the last column of the table of many models holds.
_OBJECTIVE = Objective(0.1, 0.99)
_MOST = 6
_HEAD = (
    *("shards", "a batch from", "mean batch", "p50, p99 ms", "p95 of `enterprise`, `free`", "claims, looks a batch"),
    *("µs of Redis a request", "Redis nodes, busiest"),
)
CHOSEN = Shards(16)
# The number of shards, and from how many of them a batch is claimed.
ROWS = tuple(
    Shards(*each) for each in ((1, 1), (4, 4), (4, 1), (8, 8), (8, 1), (16, 16), (16, 4), (16, 1), (64, 64), (64, 1))
)


def load_of(
    rps: float,
    models: int,
    service: Service = _SLOW,
    max_batch_size: int = _MAX_BATCH_SIZE,
    policy: str = "adaptive",
    max_wait_ms: float = 5.0,
    payload_bytes: int = 1024,
) -> LargeLoad:
    """A load on this machine's overheads."""
    return LargeLoad(
        rps=rps,
        models=models,
        service=service,
        max_batch_size=max_batch_size,
        policy=make_maker(policy, max_batch_size, max_wait_ms),
        overheads=LOCAL,
        payload_bytes=payload_bytes,
    )


def sections() -> dict[str, str]:
    """The tables of docs/large-fleets.md, by mark; the same on every machine."""
    one, many = load_of(RPS, 1), load_of(RPS, MODELS)
    return {
        ONE: table([row(fleet(one, each)) for each in ROWS]),
        MANY: table(
            [with_executors(many, each) for each in ROWS], f"executors for p99 ≤ {_OBJECTIVE.slo_s * 1e3:g} ms"
        ),
        BILL: bill(one, fleet(one, CHOSEN)),
    }


def table(rows: Iterable[Sequence[str]], *more: str) -> str:
    """Markdown."""
    head = (*_HEAD, *more)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def with_executors(load: LargeLoad, shards: Shards) -> list[str]:
    """A row with the smallest number of executors of a model that meets the objective."""
    found = executors_for(load, shards, _OBJECTIVE, _MOST)
    return [*row(fleet(load, shards)), f"more than {_MOST}" if found is None else f"{found}"]


def row(each: ShardedFleet) -> list[str]:
    """The cells of one number of shards and one reach of a claim."""
    report, shards = each.report, each.shards
    tiers = report.per_tier_p95_ms
    busy = f"{each.redis_nodes}, {each.redis_busy:.0%}"
    return [
        f"{shards.count}",
        "all" if shards.reach >= shards.count else f"{shards.reach}",
        f"{report.mean_batch or 0:.1f}",
        f"{report.p50_ms or 0:,.0f}, {report.p99_ms or 0:,.0f}",
        f"{tiers.get('enterprise', 0):,.0f}, {tiers.get('free', 0):,.0f}",
        f"{report.visits / report.batches:.1f}, {report.looks / report.batches:.1f}",
        f"{each.costs.redis_us:.0f}",
        busy if each.feasible else f"**{busy}**",
    ]


def bill(load: LargeLoad, found: ShardedFleet) -> str:
    """Markdown: what a fleet consists of."""
    nodes, costs = found.redis_nodes, found.costs
    both = found.bandwidth.redis / 1e6
    rows = [
        ("executors (GPUs)", f"{found.executors}", "rate / rate of one with full batches / 0.7"),
        ("workers", f"{found.workers}", f"eight executors each; {costs.worker_us:.0f} µs a request"),
        ("frontends", f"{found.frontends}", f"rate × {costs.frontend_us:.0f} µs / 0.7"),
        ("callers who wait", f"{found.connections:,}", "rate × median latency (Little)"),
        ("Redis primaries", f"{nodes}", f"{costs.redis_us:.0f} µs a request, shards undivided; as many replicas"),
        ("memory of a primary", f"{found.memory_bytes / nodes / 2**20:,.0f} MiB", "results for 10 s, and the queues"),
        ("network at a primary", f"{both / nodes:,.0f} MB/s", "in, and as much out; its replica doubles what goes out"),
        ("log of a primary", f"{found.log_bytes_per_s / nodes / 1e6:,.0f} MB/s", "`BUNCH_DURABILITY=second`"),
        ("network to the callers", f"{found.bandwidth.callers / 1e6:,.0f} MB/s", "each way"),
        ("cores", f"{load.rps * costs.total_us / 1e6 / 0.7:,.0f}", "all processes but the models, at 70 %"),
    ]
    return "\n".join(["| | needed | because |", "|---|---|---|", *(f"| {' | '.join(each)} |" for each in rows)])


def as_json(each: ShardedFleet) -> dict[str, Any]:
    report = each.report
    return {
        "shards": each.shards.count,
        "reach": min(each.shards.reach, each.shards.count),
        "mean_batch": round(report.mean_batch or 0.0, 2),
        **{name: round(getattr(report, name) or 0.0, 2) for name in ("p50_ms", "p95_ms", "p99_ms")},
        "calls_per_request": {name: round(value, 4) for name, value in dataclasses.asdict(each.calls).items()},
        "us_per_request": {name: round(value, 2) for name, value in dataclasses.asdict(each.costs).items()},
        "executors": each.executors,
        "frontends": each.frontends,
        "workers": each.workers,
        "redis_nodes": each.redis_nodes,
        "redis_busy": round(each.redis_busy, 4),
        "feasible": each.feasible,
        "redis_memory_bytes": round(each.memory_bytes),
        "redis_bandwidth_bytes_per_s": round(each.bandwidth.redis),
        "bandwidth_bytes_per_s": round(each.bandwidth.callers),
        "log_bytes_per_s": round(each.log_bytes_per_s),
    }

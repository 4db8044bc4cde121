"""`plan --processes`: the table of what limits fleets of 1, 2, 4 and 8 frontends and workers."""

from __future__ import annotations

from batching.capacity.processes import (
    EXECUTOR,
    FRONTEND,
    MEASURED,
    REDIS,
    WORKER,
    Bound,
    Model,
    UnitCosts,
    bounds,
    served,
)
from batching.simulator import Affine
from cli.plan.simulate import LOCAL, make_maker

MARK = "processes"
_ROLES = (FRONTEND, REDIS, WORKER, EXECUTOR)
# As tests/benchmarks drive it: 50 ms for a batch of up to 64.
_SLOW_S = 0.05


def model_of(batch_s: float, item_s: float, max_batch_size: int, policy: str, max_wait_ms: float) -> Model:
    """A model on this machine's overheads."""
    return Model(Affine(batch_s, item_s), max_batch_size, make_maker(policy, max_batch_size, max_wait_ms), LOCAL)


def page_table() -> str:
    """The tables of docs/capacity.md; the same on every machine."""
    small, large = sorted(MEASURED)
    slow = model_of(_SLOW_S, 0.0, 64, "adaptive", 5.0)
    parts = [
        _titled(f"A model that takes no time, {small} bytes", MEASURED[small]),
        _titled(f"A model that takes no time, {large // 1024} KB", MEASURED[large]),
        _titled(f"50 ms for a batch of up to 64, {large // 1024} KB", MEASURED[large], slow),
    ]
    return "\n\n".join(parts)


def _titled(title: str, costs: UnitCosts, model: Model | None = None) -> str:
    each = ", ".join(f"{name} {us:g}" for name, us in zip(_ROLES, _values(costs), strict=True))
    found = bounds(costs, model)
    text = f"**{title}**; µs a request: {each}.\n\n{table(found)}"
    if model is None:
        return text
    busy = served(costs, found[1].rps)
    return (
        f"{text}\n\nOne frontend can keep {busy[FRONTEND]} of these executors busy, Redis {busy[REDIS]}, one worker "
        f"{busy[WORKER]}."
    )


def _values(costs: UnitCosts) -> tuple[float, ...]:
    return costs.frontend_us, costs.redis_us, costs.worker_us, costs.executor_us


def table(found: dict[int, Bound]) -> str:
    """Markdown: a row for each size, with the utilisation of one process of each role."""
    lines = [
        "| frontends, workers | requests/s | limit | " + " | ".join(f"{role} busy" for role in _ROLES) + " | cores |",
        "|" + "---|" * (4 + len(_ROLES)),
    ]
    for size, each in found.items():
        busy = " | ".join(f"{each.busy[role]:.0%}" for role in _ROLES)
        lines.append(f"| {size}, {size} | {round(each.rps, -2):,.0f} | {each.limit} | {busy} | {each.cores:.1f} |")
    return "\n".join(lines)

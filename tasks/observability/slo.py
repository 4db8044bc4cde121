"""Service level objectives: a share of a tier's requests must be answered with 200 within a latency.

Attainment is the share that was. Burn rate is how fast the error budget is used: at 1 the objective is just met, at 14
the budget of thirty days is gone in two. Errors of the caller count on neither side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from config.settings import Settings
from config.tiers import Tier

# Errors of the caller. Every other code counts as a failure of the service, also a new one until it is added here.
CALLERS_OWN = frozenset(
    {
        *("INVALID_JSON", "INVALID_INPUT", "INVALID_HEADER", "UNAUTHENTICATED", "FORBIDDEN", "UNKNOWN_MODEL"),
        *("UNKNOWN_TASK", "NOT_FOUND", "METHOD_NOT_ALLOWED", "ALREADY_FINISHED", "CANCELLED", "IDEMPOTENCY_CONFLICT"),
        *("PAYLOAD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE", "INPUT_REJECTED", "RATE_LIMITED", "CALLER_GONE"),
    }
)
# Windows within the last hour, by the value of the gauges' `window` label.
WINDOWS_S: Mapping[str, int] = {"5m": 300, "1h": 3600}


@dataclass(frozen=True, slots=True)
class Objective:
    """`target` (a fraction) of a tier's requests must be answered within `latency_s`."""

    latency_s: float
    target: float

    def burn_rate(self, attainment: float) -> float:
        return (1 - attainment) / (1 - self.target)


def objectives(settings: Settings) -> dict[Tier, Objective]:
    return {
        Tier.ENTERPRISE: Objective(settings.slo_enterprise_ms / 1000, settings.slo_enterprise_target),
        Tier.PAID: Objective(settings.slo_paid_ms / 1000, settings.slo_paid_target),
        Tier.FREE: Objective(settings.slo_free_ms / 1000, settings.slo_free_target),
    }


def missed_after_s(code: str, objective: Objective) -> float:
    """The latency from which on an answer with `code` misses the objective."""
    if code == "OK":
        return objective.latency_s
    return float("inf") if code in CALLERS_OWN else -1.0


def counted(requests: Iterable[tuple[Mapping[str, str], float]]) -> dict[str, float]:
    """The number of requests that count, per tier, from samples of `bunch_requests_total`."""
    sums: dict[str, float] = {}
    for labels, value in requests:
        if labels["code"] not in CALLERS_OWN:
            sums[labels["tier"]] = sums.get(labels["tier"], 0.0) + value
    return sums


def attainment(counted: float, missed: float) -> float:
    """The share that met the objective; 1 when there were no requests."""
    return 1.0 if counted <= 0 else max(0.0, 1 - missed / counted)

"""The frontend's own metrics, added up in this process and flushed to the shared sums once a second."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import gevent
from redis.exceptions import RedisError

from config.settings import Settings
from config.tiers import Tier
from tasks import metrics, slo

logger = logging.getLogger(__name__)

# Requests, their seconds, the latency from which on one has missed its objective, what counts that, and the latency
# from which on a request is worth remembering: always, if it failed or everything is logged.
_Children = tuple[Any, Any, float, Any, float]
_children: dict[tuple[str, Tier, str], _Children] = {}
_objectives: dict[Tier, slo.Objective] = slo.objectives(Settings())
_counting = True
# Where the log takes a line for each request.
_ANSWERS_LOGGER = logging.getLogger("webapp.aftermath")


def configure(settings: Settings) -> None:
    """Before the first request of this process: objectives, and whether anything is counted."""
    global _counting  # noqa: PLW0603 - this process's, set once at its start
    _counting = settings.metrics == "on"
    _objectives.update(slo.objectives(settings))
    _children.clear()


def count(model: str, tier: Tier, code: str, seconds: float, shed: str = "") -> bool:
    """One request answered: `code` is OK or the contract's, `shed` why it was not let in.

    Returns whether `webapp.aftermath` should remember it.
    """
    children = _children.get((model, tier, code))
    if children is None:
        children = _children[model, tier, code] = _make_children(model, tier, code)
    requests, latency, missed_after_s, missed, remember_after_s = children
    requests.inc()
    latency.observe(seconds)
    if seconds > missed_after_s:
        missed.inc()
    if shed:
        metrics.SHED.labels(tier.value, shed).inc()
    return seconds > remember_after_s


def _make_children(model: str, tier: Tier, code: str) -> _Children:
    objective = _objectives[tier]
    missed_after_s = slo.missed_after_s(code, objective)
    if not _counting:
        nothing = metrics.Nothing()
        return nothing, nothing, float("inf"), nothing, missed_after_s
    return (
        metrics.REQUESTS.labels(model, tier.value, code),
        metrics.REQUEST_SECONDS.labels(model, tier.value),
        missed_after_s,
        metrics.SLO_MISSED.labels(tier.value),
        -1.0 if _ANSWERS_LOGGER.isEnabledFor(logging.DEBUG) else missed_after_s,
    )


def every_second(calls: Sequence[Callable[[], object]], every_s: float = 1.0) -> None:
    """Each of `calls` once a second until killed, and once more then."""
    try:
        while True:
            gevent.sleep(every_s)
            _call(calls)
    finally:
        _call(calls)


def _call(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        try:
            call()
        except RedisError as error:
            logger.debug("metrics not flushed: %s", error)
        except Exception:
            # Whatever it is, the next second's figures must still come.
            logger.exception("telemetry")

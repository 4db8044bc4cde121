"""The frontend's metrics, summed up in this process and flushed to the shared sums once a second."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence

import gevent
from redis.exceptions import RedisError

from config.settings import Settings
from config.tiers import Tier
from tasks.observability import metrics, slo

logger = logging.getLogger(__name__)


class _Tally:
    """Requests of one model, tier and code within the current second, counted by this process's one thread.

    `missed_after_s` is the latency from which on a request has missed its objective, `remember_after_s` that from which
    on it is logged: always, if it failed or everything is logged.
    """

    __slots__ = ("buckets", "missed", "missed_after_s", "remember_after_s", "seconds")

    def __init__(self, missed_after_s: float, remember_after_s: float) -> None:
        self.missed_after_s = missed_after_s
        self.remember_after_s = remember_after_s
        self.clear()

    def clear(self) -> None:
        self.buckets = metrics.buckets()
        self.seconds = 0.0
        self.missed = 0


_tallies: dict[tuple[str, Tier, str], _Tally] = {}
_objectives: dict[Tier, slo.Objective] = slo.objectives(Settings())
_counting = True
# The logger that takes a line for each request at DEBUG.
_ANSWERS_LOGGER = logging.getLogger("webapp.observability.request_log")


def configure(settings: Settings) -> None:
    """Set the objectives, and whether anything is counted; before the first request of this process."""
    global _counting  # noqa: PLW0603 - this process's, set once at its start
    _counting = settings.metrics == "on"
    _objectives.update(slo.objectives(settings))
    hand_over()
    _tallies.clear()


def count(model: str, tier: Tier, code: str, seconds: float, shed: str = "") -> bool:
    """Count one answered request: `code` is OK or the contract's, `shed` the reason of a refusal.

    Returns whether `webapp.observability.request_log` should log it.
    """
    tally = _tallies.get((model, tier, code))
    if tally is None:
        tally = _tallies[model, tier, code] = _make_tally(tier, code)
    if _counting:
        tally.buckets[bisect_left(metrics.SECONDS, seconds)] += 1
        tally.seconds += seconds
        if seconds > tally.missed_after_s:
            tally.missed += 1
    if shed:
        metrics.SHED.labels(tier.value, shed).inc()
    return seconds > tally.remember_after_s


def hand_over() -> None:
    """Add the counts to the metrics proper, before those are flushed."""
    for (model, tier, code), tally in _tallies.items():
        number = sum(tally.buckets)
        if number:
            metrics.REQUESTS.labels(model, tier.value, code).inc(number)
            metrics.observe_all(metrics.REQUEST_SECONDS.labels(model, tier.value), tally.buckets, tally.seconds)
            metrics.SLO_MISSED.labels(tier.value).inc(tally.missed)
            tally.clear()


def _make_tally(tier: Tier, code: str) -> _Tally:
    missed_after_s = slo.missed_after_s(code, _objectives[tier])
    logs_all = _counting and _ANSWERS_LOGGER.isEnabledFor(logging.DEBUG)
    return _Tally(missed_after_s, -1.0 if logs_all else missed_after_s)


def every_second(calls: Sequence[Callable[[], object]], every_s: float = 1.0) -> None:
    """Call each of `calls` once a second until killed, and once more at the end."""
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
            logger.debug("could not write metrics and records to Redis; the next second retries: %s", error)
        except Exception:
            # Whatever it is, the next second must follow.
            logger.exception("could not write metrics and records to Redis; the next second retries")

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


OWN_DOOR = "bunch"
"""The label `door` of our own endpoints; the others are named in `webapp.api.doors`."""


class _Tally:
    """Requests of one model, tier, code and door within the current second, counted by this process's one thread.

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


# Where the log takes a line for each request.
_ANSWERS_LOGGER = logging.getLogger("webapp.observability.request_log")


class RequestTallies:
    """The requests that one frontend process has answered since they were last handed over to the metrics.

    For one thread: the greenlets of a process take turns only where they wait.
    """

    def __init__(self, settings: Settings) -> None:
        self._counting = settings.metrics == "on"
        self._objectives = slo.objectives(settings)
        self._tallies: dict[tuple[str, Tier, str, str], _Tally] = {}

    def count(self, model: str, tier: Tier, code: str, seconds: float, shed: str = "", door: str = OWN_DOOR) -> bool:
        """Count one answered request. `code` is OK or the contract's, `shed` the reason why it was not let in, `door`
        the API by which it came.

        Returns whether `webapp.observability.request_log` should remember it.
        """
        tally = self._tallies.get((model, tier, code, door))
        if tally is None:
            tally = self._tallies[model, tier, code, door] = self._make_tally(tier, code)
        if self._counting:
            tally.buckets[bisect_left(metrics.SECONDS, seconds)] += 1
            tally.seconds += seconds
            if seconds > tally.missed_after_s:
                tally.missed += 1
        if shed:
            metrics.SHED.labels(tier.value, shed).inc()
        return seconds > tally.remember_after_s

    def hand_over(self) -> None:
        """Add what has been counted to the metrics proper; call it before they are flushed."""
        for (model, tier, code, door), tally in self._tallies.items():
            number = sum(tally.buckets)
            if number:
                metrics.REQUESTS.labels(model, tier.value, code, door).inc(number)
                metrics.observe_all(metrics.REQUEST_SECONDS.labels(model, tier.value), tally.buckets, tally.seconds)
                metrics.SLO_MISSED.labels(tier.value).inc(tally.missed)
                tally.clear()

    def _make_tally(self, tier: Tier, code: str) -> _Tally:
        missed_after_s = slo.missed_after_s(code, self._objectives[tier])
        logs_all = self._counting and _ANSWERS_LOGGER.isEnabledFor(logging.DEBUG)
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
            # Whatever it is, the next second's figures must still come.
            logger.exception("a task of every second failed; it is tried again in the next one")

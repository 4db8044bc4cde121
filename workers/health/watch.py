"""Watches the GPUs of a worker's executors: a thread of its own asks the driver once a second.

    driver ──read──▶ judge ──▶ Verdict ──▶ Reactions: smaller batches, other processes, the end of this worker
                        └──▶ the last state, which the heartbeat reads without ever waiting for the driver

A broken driver hangs rather than fails. Then the thread hangs, the state becomes old, and after a while counts as
degraded; heartbeats and batches go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tasks.observability.metrics import GPU_ERRORS
from workers.health.verdict import Health, Reading, Verdict, judge

logger = logging.getLogger(__name__)

EVERY_S = 1.0
# A driver that has not answered for this long is taken to hang.
SILENT_S = 10.0


class Driver(Protocol):
    """`workers.health.nvml.NvmlDriver`, or a stand-in."""

    def read(self, names: Collection[str]) -> list[Reading]: ...

    def close(self) -> None: ...


class Reactions(Protocol):
    """A worker's reactions to its GPUs. `names` are those of executors' devices."""

    def devices(self) -> frozenset[str]:
        """The names of the GPUs that its executors use now. Called at the begin of each look."""

    def memory_is_full(self, names: frozenset[str]) -> None:
        """Called with each judgement; without names, no memory is."""

    def replace(self, names: frozenset[str], reason: str) -> None:
        """Replace the processes on a GPU: it has reported an error of an application."""

    def go_offline(self, reason: str) -> None:
        """Called once: this worker cannot go on."""


@dataclass(frozen=True, slots=True)
class State:
    """The last judgement, with its readings."""

    readings: Sequence[Reading] = ()
    health: Health = Health.HEALTHY
    reasons: tuple[str, ...] = ()


class HealthWatch:
    """The watch of one worker.

    Args:
        name: returns the worker's name, for the metrics.
        open_driver: called in the thread; None: there is nothing to watch.
        memory_limit: the share of a GPU's memory above which batches become smaller; 1: never.
    """

    def __init__(
        self,
        reactions: Reactions,
        name: Callable[[], str],
        open_driver: Callable[[], Driver | None],
        memory_limit: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reactions = reactions
        self._name = name
        self._open = open_driver
        self._memory_limit = memory_limit
        self._clock = clock
        self._state = State()
        self._verdict = Verdict()
        # When the driver was last asked, while it has not answered.
        self._asked_at: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it is not waited for, as it may hang."""
        self._stop.set()

    def state(self) -> State:
        """The state now; never blocks."""
        asked_at, state = self._asked_at, self._state
        silent_s = 0.0 if asked_at is None else self._clock() - asked_at
        if silent_s < SILENT_S or state.health is Health.OFFLINE:
            return state
        # Without readings: figures of long ago would be taken for those of now.
        return State((), Health.DEGRADED, (f"the GPU driver has not answered for {silent_s:.0f} s",))

    def look(self, driver: Driver) -> None:
        """Ask the driver once, judge, and react; a worker that goes offline stays so."""
        if self._state.health is Health.OFFLINE:
            return
        self._asked_at = self._clock()
        readings = driver.read(self._reactions.devices())
        self._asked_at = None
        self._verdict = verdict = judge(readings, self._verdict, self._memory_limit)
        self._count(readings)
        was, self._state = self._state, State(readings, verdict.health, verdict.reasons)
        self._log(was)
        names = {each.device: each.names for each in readings}
        self._reactions.memory_is_full(frozenset().union(*(names[device] for device in verdict.full)))
        if verdict.health is Health.OFFLINE:
            self._reactions.go_offline(verdict.reasons[0])
            return
        for device, reason in verdict.replace.items():
            self._reactions.replace(names[device], reason)

    def _run(self) -> None:
        try:
            driver = self._opened()
            if driver is None:
                return
            failing = False
            while not self._stop.is_set():
                try:
                    self.look(driver)
                    failing = False
                except Exception:
                    # Once: it is tried each second.
                    if not failing:
                        logger.exception("the health of the GPUs could not be read; it is tried again")
                    failing = True
                self._stop.wait(EVERY_S)
            driver.close()
        except Exception:
            logger.exception("the health of the GPUs is not watched")

    def _opened(self) -> Driver | None:
        if not self._reactions.devices():
            return None
        self._asked_at = self._clock()
        driver = self._open()
        self._asked_at = None
        return driver

    def _count(self, readings: Sequence[Reading]) -> None:
        for each in readings:
            for xid in each.xids:
                GPU_ERRORS.labels(self._name(), each.device, f"xid_{xid}").inc()
            if each.lost:
                GPU_ERRORS.labels(self._name(), each.device, "lost").inc()

    def _log(self, was: State) -> None:
        now = self._state
        if now.reasons and now.reasons != was.reasons and now.health is not was.health:
            logger.warning("this worker is %s: %s", now.health.value, "; ".join(now.reasons))
        elif was.health is Health.DEGRADED and now.health is Health.HEALTHY:
            logger.info("the GPUs of this worker are healthy again")

"""The warm spare of an executor: a second process with the model loaded, which takes the place of one that ends.

    start ──▶ loading ──▶ ready ──take──▶ serves; the next spare is started
      ▲          └─ failed, died ─┐
      └───────── back-off ────────┘

The thread that supervises the executor calls everything here: a child is killed when the thread that started it ends.
"""

from __future__ import annotations

import logging
import math
import select
import time
from collections.abc import Callable

from config.settings import ModelSettings
from workers.executor.process import ChildProcess, StartFailed

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 60.0


class Spare:
    """At most one process besides the one that serves.

    Args:
        name: the executor's.
        start: starts a child process; it may raise OSError.
        on_loaded: called with the seconds that a load took.
    """

    def __init__(
        self, name: str, start: Callable[[ModelSettings], ChildProcess], on_loaded: Callable[[float], None]
    ) -> None:
        self._name = name
        self._start = start
        self._on_loaded = on_loaded
        self._child: ChildProcess | None = None
        self._model: ModelSettings | None = None
        self._ready = False
        self._due = -math.inf
        self._backoff_s = _FIRST_BACKOFF_S

    @property
    def pid(self) -> int | None:
        """The process that could serve at once; None while there is none."""
        return self._child.pid if self._child is not None and self._ready else None

    def take(self, model: ModelSettings) -> ChildProcess | None:
        """The spare for these settings, loaded or still loading, which is the caller's now; None: there is none."""
        # One that died in the meantime has no start to fail: the caller starts another.
        if self._model is not model or (self._child is not None and self._child.gone):
            self.close()
        child, self._child = self._child, None
        self._ready = False
        if child is not None:
            child.reset_oom_evidence()
        return child

    def tend(self, model: ModelSettings) -> bool:
        """Start a spare, see whether it is ready, or replace a dead one; returns whether `watch` has changed."""
        before = self._child
        if self._model is not model:
            self.close()
            self._model, self._due, self._backoff_s = model, -math.inf, _FIRST_BACKOFF_S
        try:
            if self._child is not None:
                self._look(self._child, model)
            elif model.spare and time.monotonic() >= self._due:
                self._child = self._start(model)
        except StartFailed as error:
            self._failed(error.why, final=error.final)
        except OSError as error:
            self._failed(f"cannot start a process: {error}")
        return self._child is not before

    def watch(self, poll: select.poll) -> None:
        if self._child is not None:
            self._child.watch(poll)

    def wait_s(self) -> float:
        """The time after which `tend` has something to do, unless `watch` makes it do so before."""
        if self._model is None or not self._model.spare or self._ready:
            return math.inf
        if self._child is not None:
            return self._child.started_at + self._model.start_timeout_s - time.monotonic()
        return self._due - time.monotonic()

    def close(self) -> None:
        """Kill it, if there is one."""
        child, self._child = self._child, None
        self._ready = False
        if child is not None:
            child.bury()
            child.close()

    def _look(self, child: ChildProcess, model: ModelSettings) -> None:
        if child.look(model.start_timeout_s) is None or self._ready:
            return
        self._ready = True
        self._backoff_s = _FIRST_BACKOFF_S
        self._on_loaded(time.monotonic() - child.started_at)
        logger.info("%s: a spare process is ready", self._name)

    def _failed(self, why: str, *, final: bool = False) -> None:
        self.close()
        self._due = math.inf if final else time.monotonic() + self._backoff_s
        logger.warning("%s: no spare process: %s", self._name, why.rstrip())
        self._backoff_s = min(_MAX_BACKOFF_S, self._backoff_s * 2)

"""An executor whose process comes and goes: `workers.residency` says when.

    unloaded ──load──▶ starting ──▶ ready ──unload──▶ its batches end, then its process ──▶ unloaded
                          └──▶ failed: no other try until the next `load`

While it is unloaded it has no process and no spare, and its supervisor sleeps.
"""

from __future__ import annotations

import time
from typing import Any

from batching.executor import ExecutorState
from batching.request import Done
from config.settings import ModelSettings
from workers.executor.ipc import ToParent
from workers.executor.process_executor import FIRST_BACKOFF_S, ProcessExecutor


class OnDemandExecutor(ProcessExecutor):
    """A `ProcessExecutor` that starts unloaded. `requests` were answered so far, the last batch at `used_at`
    (monotonic).
    """

    def __init__(self, model: ModelSettings, index: int, **options: Any) -> None:
        super().__init__(model, index, **options)
        self._state = ExecutorState.UNLOADED
        self._wanted = self._ends = False
        self._loads = 0
        # Nothing of it takes room.
        self.is_out = True
        self.requests, self.used_at = 0, float("-inf")

    @property
    def restarts(self) -> int:
        """The number of restarts that were not asked for."""
        return max(0, self.starts - self._loads)

    def load(self) -> None:
        """Begin to load, and return at once."""
        # In one step: it could be ready before it is shown as starting.
        with self._changed:
            if self._ends:
                return
            self.is_out, self._wanted, self._backoff_s = False, True, FIRST_BACKOFF_S
            self._loads += 1
            self._state = ExecutorState.STARTING
            # This wakes the supervisor.
            self._changed.notify_all()
        self._on_change()

    def unload(self) -> None:
        """Let the process finish its batches and end, and return at once; `is_out` is true after that. After a failure:
        nothing hinders the next load any more.
        """
        with self._sending:
            self._wanted, self._loaded = False, None
            child, self._child = self._child, None
        if child is not None:
            child.close_input()
        elif self.is_out:
            self._become(ExecutorState.UNLOADED)

    def replace(self, model: ModelSettings) -> None:
        """As of a `ProcessExecutor`; after a failure the new settings wait for the next `load`."""
        super().replace(model)
        with self._changed:
            # A load may be failing just now: with the settings of before.
            self._error = None
            if self.is_out and not self._ends:
                self._state = ExecutorState.UNLOADED
        self._on_change()

    def stop(self, timeout_s: float) -> None:
        """Stop, also while there is no process."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        super().stop(timeout_s)

    def _live(self) -> None:
        """One child from its start to its death, as soon as it is wanted."""
        if not self._wanted:
            self.spare.close()
            self._leave()
            # Also if it has failed before and goes on to be shown as such.
            self._on_change()
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._ends)
        if not self._ends:
            super()._live()

    def _leave(self) -> None:
        """Be out, in one step: another thread may load it at that time, or find it out and reload it."""
        with self._changed:
            if not self._wanted:
                self._state = ExecutorState.FAILED if self._error else ExecutorState.UNLOADED
                self.is_out = True
                self._changed.notify_all()

    def _start_failed(self, error: str) -> None:
        self._wanted = False
        super()._start_failed(error)

    def _answered(self, message: ToParent) -> None:
        super()._answered(message)
        if isinstance(message, Done):
            self.requests += len(message.outcomes)
            self.used_at = time.monotonic()

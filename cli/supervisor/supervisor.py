"""The rules of the supervisor: when a child starts, is restarted, counts as started, and is stopped.

    STARTING ──all running, /readyz 200──▶ READY ──stop()──▶ STOPPING ──▶ DONE
        └────a child keeps dying (`failure`)────────────────────▲

In READY the number of children of a role may be changed (`resize`): new ones start, the others drain and are forgotten.

`tick` is called by one loop on the main thread and blocks no longer than the probes do. The clock is an
argument.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from cli.supervisor.backoff import Backoff
from cli.supervisor.reaper.reaper_client import Reaper
from cli.supervisor.supervised_process import ProcessSpec, State, SupervisedProcess

# Deaths in a row before the stack was ready, after which another try would only repeat the error.
MAX_START_FAILURES = 4
_LOOK_EVERY_S = 0.25
_HASTY_TIMEOUT_S = 4.0


class Phase(str, Enum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    DONE = "done"


class Report(Protocol):
    """The supervisor's reports to the screen."""

    def died(self, child: SupervisedProcess, why: str) -> None: ...

    def broken(self, child: SupervisedProcess) -> None:
        """The child lives, but a part of it does not start: `child.error`."""


class Supervisor:
    """Keeps `specs` running until it is told to stop."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        reaper: Reaper,
        report: Report,
        *,
        ready: Callable[[], bool] = lambda: True,
        backoff: Backoff | None = None,
        give_up_on_errors: bool = False,
    ) -> None:
        """Construct only; the first `tick` starts the children.

        Args:
            ready: returns whether the stack as a whole answers; called once every child is running.
            give_up_on_errors: also stop when a child reports, before all is ready, that a part of it is broken.
        """
        self._backoff = backoff or Backoff()
        self.children = [SupervisedProcess(spec, reaper, self._backoff) for spec in specs]
        self.phase = Phase.STARTING
        self.failure = ""
        self._reaper = reaper
        self._report = report
        self._ready = ready
        self._give_up_on_errors = give_up_on_errors
        self._look_at = 0.0
        self._kill_at: dict[str, float] = {}
        self._leaving: list[SupervisedProcess] = []
        self._hasty = False

    def tick(self, now: float) -> None:
        if self.phase is Phase.DONE:
            return
        # When one process cannot be started, no other can; the next tick tries again.
        with contextlib.suppress(OSError):
            self._reaper.check()
        for child in self.children:
            self._reap(child, now)
        for child in self.children:
            child.start_if_due(now)
        if self.phase is Phase.STARTING:
            self._start_next_stage(now)
        if self.phase is Phase.READY:
            self._forget_those_gone(now)
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self._look()
        if self.phase is Phase.STOPPING:
            self._stop_next_stage(now)

    def resize(self, role: str, specs: Sequence[ProcessSpec], now: float) -> None:
        """Replace the children of `role` by `specs`.

        Call it repeatedly: a name that is wanted again is free only when its child is gone.
        """
        if self.phase is not Phase.READY:
            return
        wanted = {spec.name for spec in specs}
        for child in self.children:
            if child.spec.role == role and child.spec.name not in wanted and child not in self._leaving:
                self._leaving.append(child)
                self._kill_at[child.spec.name] = now + child.spec.stop_timeout_s
                child.stop()
        there = {child.spec.name for child in self.children}
        for spec in specs:
            if spec.name not in there:
                child = SupervisedProcess(spec, self._reaper, self._backoff)
                self.children.append(child)
                child.start(now)

    def _forget_those_gone(self, now: float) -> None:
        for child in list(self._leaving):
            if child.is_gone:
                self._leaving.remove(child)
                self.children.remove(child)
            elif child.state is State.STOPPING and now >= self._kill_at[child.spec.name]:
                child.kill()

    def reload(self) -> None:
        """Have the frontends read their settings and certificate again."""
        for child in self.children:
            if child.spec.role in {"web", "grpc"}:
                child.reload()

    def stop(self) -> None:
        """Stop the children in order, each gracefully."""
        if self.phase in {Phase.STARTING, Phase.READY}:
            self.phase = Phase.STOPPING

    def kill(self, now: float) -> None:
        """Stop everything at once; children of the last stage wait until those that use them have ended."""
        self.stop()
        if not self._hasty:
            self._hasty = True
            last = max(child.spec.stop_stage for child in self.children)
            for child in self.children:
                if child.spec.stop_stage < last:
                    self._hasten(child, now)

    def _reap(self, child: SupervisedProcess, now: float) -> None:
        was = child.state
        status = child.reap(now)
        if status is None or was is State.STOPPING:
            return
        self._report.died(child, child.detail)
        if self.phase is Phase.STARTING and not child.spec.optional and child.failures >= MAX_START_FAILURES:
            self._give_up(f"{child.spec.name} could not be started: {child.detail}; see {child.spec.log_file}")

    def _start_next_stage(self, now: float) -> None:
        for child in sorted(self.children, key=lambda each: each.spec.start_stage):
            earlier = (each for each in self.children if each.spec.start_stage < child.spec.start_stage)
            if child.state is State.WAITING and all(map(_is_past_starting, earlier)):
                child.start(now)

    def _look(self) -> None:
        for child in self.children:
            child.probe()
            if child.error and child.error != child.reported_error:
                child.reported_error = child.error
                self._report.broken(child)
                if self.phase is Phase.STARTING and self._give_up_on_errors:
                    self._give_up(child.error)
        if self.phase is Phase.STARTING and all(map(_has_started, self.children)) and self._ready():
            self.phase = Phase.READY

    def _give_up(self, why: str) -> None:
        self.failure = why
        self.stop()

    def _stop_next_stage(self, now: float) -> None:
        left = [child for child in self.children if child.state is not State.STOPPED]
        if not left:
            self.phase = Phase.DONE
            return
        stage = min(child.spec.stop_stage for child in left)
        for child in left:
            if child.state is State.STOPPING:
                if now >= self._kill_at[child.spec.name]:
                    child.kill()
            elif child.spec.stop_stage == stage and self._hasty:
                self._hasten(child, now)
            elif child.spec.stop_stage == stage:
                child.stop()
                self._kill_at[child.spec.name] = now + child.spec.stop_timeout_s

    def _hasten(self, child: SupervisedProcess, now: float) -> None:
        child.hasten()
        self._kill_at[child.spec.name] = now + _HASTY_TIMEOUT_S


def _is_past_starting(child: SupervisedProcess) -> bool:
    # Waiting for a worker must not include a model that does not load.
    return child.state is State.RUNNING or bool(child.error)


def _has_started(child: SupervisedProcess) -> bool:
    return child.state is State.RUNNING or (child.spec.optional and child.failures > 0)

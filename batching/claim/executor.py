"""The port to whatever runs the model: one batch at a time, in order, possibly dying on the way.

`workers.executor.process_executor.ProcessExecutor` is the real one: a spawned child process per GPU. Tests use an
in-process twin.
Two threads of the claim loop use an executor: one sends, one receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from batching.request import Done, Work


class ExecutorState(str, Enum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class Cause(str, Enum):
    """Why the process behind an executor was replaced."""

    EXIT = "exit"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    DEVICE = "device"
    """Its device failed; every later batch would have failed too."""
    BARREN = "barren"
    """Nothing came through any more."""
    RELOAD = "reload"


@dataclass(frozen=True, slots=True)
class Lost:
    """The executor died, or was killed for taking too long, or its process was done for.

    `inside` was being computed and may be the cause; the batches in `waiting` never reached the model.
    """

    inside: str | None
    waiting: tuple[str, ...]
    reason: str
    cause: Cause = Cause.EXIT

    @property
    def convicts_alone(self) -> bool:
        """Whether the next process can tell by itself which of the inputs it was, if it gets each of them alone."""
        return self.cause in {Cause.DEVICE, Cause.BARREN}


Event: TypeAlias = Done | Lost


class ExecutorGone(Exception):
    """The batch could not be handed over; it never reached the model. `receive` reports nothing about it."""


class Executor(Protocol):
    """One instance of one model. Constructors build; `start()` starts."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> ExecutorState: ...

    @property
    def error(self) -> str | None:
        """Why the last start failed: the model's own traceback."""

    def start(self) -> None:
        """Begin starting; returns at once. Restarts after a death are the executor's own, with back-off."""

    def wait_ready(self, timeout_s: float) -> bool:
        """Block until READY, at most `timeout_s`; whether it is."""

    def send(self, work: Work) -> None:
        """Hand over a batch; it runs after those sent before it.

        Raises:
            ExecutorGone: when there is no living child to take it.
        """

    def receive(self, timeout_s: float) -> Event | None:
        """The next finished batch or death, in order; None when nothing happened in `timeout_s`, or at an interrupt."""

    def interrupt(self) -> None:
        """Whoever is in `receive`, or comes next, gets None at once, behind all that has happened."""

    def stop(self, timeout_s: float) -> None:
        """Let the current batch finish for at most `timeout_s`, then kill."""

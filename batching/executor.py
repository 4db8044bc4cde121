"""The port to the process that runs the model: one batch at a time, in order; it may die at any time.

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
    UNLOADED = "unloaded"
    """It has no process until somebody needs its model (`workers.residency`)."""


class Cause(str, Enum):
    """The reason why the process behind an executor was replaced."""

    EXIT = "exit"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    DEVICE = "device"
    """The device failed; every later batch would have failed too."""
    BARREN = "barren"
    """No input succeeded any more."""
    RELOAD = "reload"


@dataclass(frozen=True, slots=True)
class Lost:
    """The executor died, was killed for exceeding its time limit, or its process became useless.

    `inside` was being computed and may be the cause; so may the batches in `beside`, which a model with overlapping
    stages had begun as well. The batches in `waiting` never reached the model.
    """

    inside: str | None
    waiting: tuple[str, ...]
    reason: str
    cause: Cause = Cause.EXIT
    beside: tuple[str, ...] = ()

    @property
    def convicts_alone(self) -> bool:
        """Return whether the next process can find the culprit by itself, if it gets each of the inputs alone."""
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
        """The error of the last start: the model's own traceback. None after a good start."""

    def start(self) -> None:
        """Begin to start, and return at once. After a death the executor restarts by itself, with back-off."""

    def wait_ready(self, timeout_s: float) -> bool:
        """Block until READY, for at most `timeout_s`; returns whether it is."""

    def send(self, work: Work) -> None:
        """Hand over a batch; it runs after those sent before it.

        Raises:
            ExecutorGone: no living child could take it.
        """

    def receive(self, timeout_s: float) -> Event | None:
        """The next finished batch or death, in order; None when nothing happened within `timeout_s`, or at an
        interrupt.
        """

    def interrupt(self) -> None:
        """Make the current or next `receive` return None at once, after all events so far."""

    def stop(self, timeout_s: float) -> None:
        """Let the current batch finish for at most `timeout_s`, then kill."""

"""What the claim loop needs from outside the core: the wire format, and somebody to tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from batching.claim.store import Entry, Settled
from batching.policy import Reason
from batching.request import Failed, Outcome, Request


class UnreadableMessage(Exception):
    """A message on a queue is not a task of ours in any protocol that we know.

    `task_id` is empty if it names none. `canvas` is the whole message when something was to follow after the task.
    """

    def __init__(self, why: str, task_id: str = "", canvas: bytes = b"") -> None:
        super().__init__(why, task_id, canvas)
        self.why = why
        self.task_id = task_id
        self.canvas = canvas

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True, eq=False)
class BatchInfo:
    """What every request of a batch has in common.

    `claimed_ms` is Redis time, `compute_s` 0 before the model ran, `passes` above 1 when it ran in parts. `wait_s` is
    how long it waited in hand for the one before it, `turn_s` how long its executor then had it: what of that is not
    compute went into encoding, decoding and the way there and back. `collapsed` of its requests were not computed, but
    answered by an equal one's output.
    """

    batch_id: str
    model: str
    version: str
    size: int
    reason: Reason
    claimed_ms: int
    compute_s: float = 0.0
    passes: int = 1
    executor: str = ""
    wait_s: float = 0.0
    turn_s: float = 0.0
    collapsed: int = 0

    def waited_s(self, request: Request) -> float:
        """How long a member had waited when it was claimed; nothing, if its sender gave no time."""
        return max(0, self.claimed_ms - request.enqueued_ms) / 1000 if request.enqueued_ms else 0.0


class LoopModel(Protocol):
    """The part of a model's settings that the loop needs."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def max_batch_bytes(self) -> int: ...


class Codec(Protocol):
    """Celery's messages in, Celery's results out."""

    def decode(self, entry: Entry) -> Request:
        """Raises UnreadableMessage."""

    def encode(self, request: Request, outcome: Outcome, batch: BatchInfo) -> Settled: ...

    def dead_letter(self, request: Request, failure: Failed, batch: BatchInfo) -> bytes:
        """What an operator should know of a request that was given up, as JSON."""


class FollowUp(Protocol):
    """What Celery owes to a task's canvas (`link`, `chain`, `chord`, …) once it has ended."""

    def follow(self, request: Request, outcome: Outcome) -> None:
        """Send what comes next; before the result is stored, as Celery does. Raises what the broker raises."""


class Observer(Protocol):
    """Told what happened, on the loop's own threads: it must be quick and must not raise."""

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None: ...

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None: ...

    def retried(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        """Put aside, to be tried again; the rest of the batch is told of by `finished`."""

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        """The batch is back in its queues."""


class NoFollowUp:
    """For a worker without a Celery app: nothing ever follows."""

    def follow(self, request: Request, outcome: Outcome) -> None:
        """Nothing to send."""


class NullObserver:
    """Nobody listens."""

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        """Nothing to tell."""

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        """Nothing to tell."""

    def retried(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        """Nothing to tell."""

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        """Nothing to tell."""

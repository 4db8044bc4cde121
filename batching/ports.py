"""The ports of the claim loop to the outside: the wire format, canvas follow-ups, and observers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from batching.claim.lease import Entry
from batching.claim.store import Settled
from batching.policy import Reason
from batching.request import Failed, Outcome, Request


class UnreadableMessage(Exception):
    """A message on a queue is not one of our tasks in any protocol that we know.

    `task_id` is empty if it has none. `canvas` is the whole message if callbacks follow the task.
    """

    def __init__(self, why: str, task_id: str = "", canvas: bytes = b"") -> None:
        super().__init__(why, task_id, canvas)
        self.why = why
        self.task_id = task_id
        self.canvas = canvas

    def __str__(self) -> str:
        return self.why


class BatchInfo(msgspec.Struct, frozen=True, eq=False):
    """The properties that all requests of a batch share.

    `claimed_ms` is Redis time, `compute_s` 0 before the model ran, `passes` above 1 when it ran in parts. `wait_s` is
    the time that it waited in hand for the batch before it, `turn_s` the time that its executor then had it: compute,
    encoding, decoding and the pipe. `collapsed` of its requests were not computed, but answered by the output of an
    equal request. The model computed `padding` inputs besides those of the requests. `followed`: when it ended, its
    executor had the next batch already. `part` is the id under which the store has what is left of a batch whose shards
    did not all answer.
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
    padding: int = 0
    followed: bool = False
    part: str = ""

    @property
    def store_id(self) -> str:
        """The id under which the store has its leases."""
        return self.part or self.batch_id

    def waited_s(self, request: Request) -> float:
        """The time that a request had waited when it was claimed; 0 if its sender gave no time."""
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
    @property
    def batch_sizes(self) -> tuple[int, ...]: ...


class Codec(Protocol):
    """Celery's messages in, Celery's results out."""

    def decode(self, entry: Entry) -> Request:
        """Raises UnreadableMessage."""

    def decode_fresh(self, entries: tuple[Entry, ...], now_ms: int) -> Sequence[Request | None]:
        """The requests of a whole claim at once, as far as that is possible: of those that run for the first time, and
        are in time. None in the place of each other one, which `decode` reads.
        """

    def encode_all(self, outcomes: list[tuple[Request, Outcome]], batch: BatchInfo) -> list[Settled]:
        """`encode` for each, at once."""

    def encode(self, request: Request, outcome: Outcome, batch: BatchInfo) -> Settled: ...

    def dead_letter(self, request: Request, failure: Failed, batch: BatchInfo) -> bytes:
        """The record of a request that was given up, for operators, as JSON."""


class FollowUp(Protocol):
    """Sends what Celery's canvas (`link`, `chain`, `chord`, …) requires after a task has ended."""

    def follow(self, request: Request, outcome: Outcome) -> None:
        """Send the next tasks; before the result is stored, as Celery does. Raises the broker's errors."""


class Observer(Protocol):
    """Is notified of events on the loop's own threads: it must be quick and must not raise."""

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None: ...

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None: ...

    def retried(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        """The requests were put aside, to be tried again; `finished` reports the rest of the batch."""

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        """The requests of the batch are back in their queues."""


class NoFollowUp:
    """For a worker without a Celery app: nothing ever follows."""

    def follow(self, request: Request, outcome: Outcome) -> None:
        """Nothing to send."""


class NullObserver:
    """An observer that ignores everything."""

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        """Ignored."""

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        """Ignored."""

    def retried(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        """Ignored."""

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        """Ignored."""

"""What the claim loop needs from outside the core: the wire format, and somebody to tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from batching.policy import Reason
from batching.request import Outcome, Request
from batching.store import Entry, Settled


class UnreadableMessage(Exception):
    """A message on a queue is not a task of ours, in any protocol that we know; it names no caller to answer."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """What every request of a batch has in common. `claimed_ms` is Redis time, `compute_s` 0 before the model ran."""

    batch_id: str
    model: str
    version: str
    size: int
    reason: Reason
    claimed_ms: int
    compute_s: float = 0.0


class Codec(Protocol):
    """Celery's messages in, Celery's results out."""

    def decode(self, entry: Entry) -> Request:
        """Raises UnreadableMessage."""

    def encode(self, request: Request, outcome: Outcome, batch: BatchInfo) -> Settled: ...


class Observer(Protocol):
    """Told what happened, on the loop's own threads: it must be quick and must not raise."""

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None: ...

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None: ...

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None: ...


class NullObserver:
    """Nobody listens."""

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        """Nothing to tell."""

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        """Nothing to tell."""

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        """Nothing to tell."""

"""The values that a batch store takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec
from redis.exceptions import RedisError

from batching.claim.lease import Entry
from batching.coalescing import Coalesced


class View(msgspec.Struct, frozen=True):
    """The waiting requests of a model. Times are Redis time in ms; `oldest_ms` is 0 when nothing waits or it is not
    known.

    `due_ms` is the earliest deadline of the queues' heads, 0 when they have none.
    """

    now_ms: int
    depths: tuple[int, ...]
    oldest_ms: int
    due_ms: int = 0

    @property
    def depth(self) -> int:
        return sum(self.depths)

    def has(self, least: int, calm_ms: int) -> bool:
        """Return whether so many wait, and no known deadline is within `calm_ms`."""
        return self.depth >= least and not 0 < self.due_ms < self.now_ms + calm_ms


class Claim(msgspec.Struct, frozen=True):
    batch_id: str
    entries: tuple[Entry, ...]
    view: View


class Settled(msgspec.Struct, frozen=True):
    """One outcome, ready to be stored.

    `reply_to` is a frontend's channel, or empty; `dead_letter` is the record of a request that was given up, or empty.
    `announce`: publish on Celery's own channel too, since a client may wait there. `asked`: it answers other requests
    too. `foreign`: it does not replace a result that a frontend's request has stored under the same id.
    """

    position: int
    task_id: str
    ttl_ms: int
    reply_to: str
    result: bytes
    dead_letter: bytes = b""
    announce: bool = True
    asked: Coalesced | None = None
    foreign: bool = False


class Blame(Enum):
    """The reason why a batch is given back, which decides what is counted."""

    NOTHING = 0
    """The batch never reached an executor."""
    ATTEMPT = 1
    """The worker died; that says nothing about the requests."""
    SUSPECT = 2
    """The executor died, and one of the requests may be the cause."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Limits of the dead letters (count and age) and of the cached answers (bytes)."""

    count: int = 1000
    age_ms: int = 7 * 24 * 3600 * 1000
    answer_bytes: int = 64 * 1024 * 1024


DEFAULT_KEEP = Keep()


class PlacesAway(RedisError):
    """Some shards of a batch do not answer now. The call was made at the others, and is not to be made there again.

    What is left of the batch is one or more batches of their own from now on.

    Args:
        done: what the call returns for the others.
        rests: the positions of each, by its id.
    """

    def __init__(self, done: object, rests: Mapping[str, frozenset[int]]) -> None:
        super().__init__(done, rests)
        self.done = done
        self.rests = rests

    def __str__(self) -> str:
        return f"shards do not answer now; {sum(map(len, self.rests.values()))} requests of the batch are theirs"

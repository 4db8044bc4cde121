"""Effects of an outcome on other requests that wait for the same answer (`tasks.client.dedup`).

an output, a refusal, a failure that would be the same again ──▶ all who wait for it
taken back, out of time, a failure that may pass             ──▶ the next of them takes its place
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import structs

from batching.request import Cancelled, Expired, Outcome, Request
from config.tiers import TIERS


class Coalesced(NamedTuple):
    """One outcome as the answer to its question.

    `keep_ms` is how long to cache it, 0: not at all. Requests that wait for it get it if it is `shared`; else one of
    them is queued. `attempts` and `lost` count the tries of the question, and the executors that died of it.
    """

    question: str
    model: str
    claimed_ms: int
    keep_ms: int
    shared: bool
    attempts: int
    lost: int

    def row(self) -> str:
        """The row that `lua/coalescing.lua` reads."""
        return f"{self.question};{self.keep_ms};{self.shared:d};{self.attempts};{self.lost}"


class Finished(msgspec.Struct, frozen=True):
    """The result of `finish`: whether it was `taken`, and the rows of requests that were settled besides the batch.

    `refused` are ids of foreign requests that belong to a frontend's request, whose result stays; `dropped` those of
    dead letters that went, since there are too many, or they are too old. `gone` are the positions whose lease was
    gone, where only a part of the batch was lost.
    """

    taken: bool
    others: tuple[bytes, ...] = ()
    refused: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    gone: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return self.taken


_ENDS: dict[bytes, Outcome] = {b"x": Expired(), b"c": Cancelled()}


def others_of(
    rows: Sequence[bytes], outcomes: Sequence[tuple[Request, Outcome]]
) -> tuple[list[tuple[Request, Outcome]], int]:
    """The waiting requests with their outcomes, and the number of them that share one of `outcomes`.

    Their positions are below 0: they were in no lease.
    """
    of = {request.position: (request, outcome) for request, outcome in outcomes}
    others: list[tuple[Request, Outcome]] = []
    shared = 0
    for number, row in enumerate(rows, 1):
        position, kind, rank, enqueued_ms, ttl_ms, task_id, owner = row.split(b";", 6)
        first, outcome = of[int(position)]
        request = Request(
            task_id.decode(),
            TIERS[int(rank)],
            -number,
            first.input,
            first.parameters,
            enqueued_ms=int(enqueued_ms),
            result_ttl_ms=int(ttl_ms),
            owner=msgspec.json.decode(owner, type=str),
            # An equal input has lain beside the queue too.
            blob=first.blob and structs.replace(first.blob, id=task_id.decode()),
        )
        shared += kind == b"s"
        others.append((request, _ENDS.get(kind, outcome)))
    return others, shared

"""The leases of batches, as `batching/lua/lease.lua` describes their lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from batching.request import Request
from config.native import hot_path


class Verdict(str, Enum):
    """The claim script's finding about a message, before it is parsed."""

    RUN = "-"
    EXPIRED = "x"
    HOPELESS = "h"
    CANCELLED = "c"


class Entry(msgspec.Struct, frozen=True):
    """One message of a lease. `position` counts from 1, in the order of the claim.

    In collocated mode it is the `request` itself, and has no message.
    """

    position: int
    rank: int
    verdict: Verdict
    message: bytes
    request: Request | None = None


class Lease(msgspec.Struct, frozen=True):
    """A lease as another process finds it; what has been settled is no entry any more."""

    worker: str
    model: str
    entries: tuple[Entry, ...]


# A place of a lease whose request is settled.
_SETTLED = b"\0"
_VERDICTS = {ord(verdict.value): verdict for verdict in Verdict}


def entries_of(marks: bytes, messages: Sequence[bytes], first: int = 0) -> tuple[Entry, ...]:
    """The entries of messages in the order of the claim, and their marks; their positions count from behind
    `first`.
    """
    if _entries is not None and (found := _entries(Entry, marks, messages, first, _VERDICTS, _SETTLED)) is not None:
        return found
    return tuple(
        Entry(first + position, marks[2 * position - 2] - 48, _VERDICTS[marks[2 * position - 1]], message)
        for position, message in enumerate(messages, 1)
        if message != _SETTLED
    )


# The same in C; None where it was not compiled.
_entries: Callable[..., tuple[Entry, ...] | None] | None = hot_path.entries if hot_path is not None else None


def model_of(header: bytes) -> str:
    """The model of a lease, from the first element of its list."""
    return header.split(b"\n")[1].decode()


def parse_lease(elements: Sequence[bytes]) -> Lease | None:
    """A lease from all elements of its list; None if it is gone."""
    if not elements:
        return None
    worker, model, *rest = elements[0].split(b"\n")
    if not rest:
        # Of an earlier version, see `lease.lua`.
        marks = b"".join(each[:2] or b"0-" for each in elements[1:])
        messages = [each[2:] if each else _SETTLED for each in elements[1:]]
        return Lease(worker.decode(), model.decode(), entries_of(marks, messages))
    return Lease(worker.decode(), model.decode(), entries_of(rest[0], elements[:0:-1]))

"""The fast header ("stamp"): the fields of a message that the scripts read without parsing it.

Our own producers put the header `bunch` first in the message, with every field at a fixed place. So a script reads it
with `string.sub` and rewrites it with a splice, whatever the size of the payload:

    {"headers":{"bunch":"1;<deadline 13>;<queue limit 13>;<enqueued 13>;<attempt 2>;<lost 1>;<tracked 1>;<ttl 9>;
                        <key 8>;<id>",…

All times are Redis time in milliseconds; the submit script fills them in, since no two hosts share a clock. The
*queue limit* is the time from which a claim finds a waiting request expired (504); once an attempt has been counted it
is the deadline. *Attempt* counts deliveries that failed and are tried again; *lost* counts those of them that ended
with the executor's death, which makes the request a suspect. *Tracked* requests have a state that a client may read
before they have finished (`celery-task-meta-<id>`: PENDING, STARTED); a caller that waits on an open connection does
not know the id yet, so the state is not written. The *key* is the tag of the caller's API key, or zeros; the places of
a batch are shared between keys. To kombu the stamp is one more header. Messages of plain Celery clients have none: they
never expire in the scripts, and count attempts in a header of their own.

`lua/fast_header.lua` is the same layout for the scripts; a test holds the two together.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

HEAD = b'{"headers":{"bunch":"1;'
NO_KEY = "00000000"
_NOBODY = NO_KEY.encode()
_TIMES = re.compile(re.escape(HEAD) + rb"(\d{13});(\d{13});(\d{13});(\d\d);(\d);([01]);(\d{9});([0-9a-fA-F]{8});")
# The offset of the id.
_ID = len(HEAD) + 68


class FastHeader(NamedTuple):
    """The fields; times in milliseconds of Redis time, 0 where there is no limit."""

    deadline_ms: int
    limit_ms: int
    enqueued_ms: int
    attempt: int
    lost: int
    tracked: bool
    result_ttl_ms: int
    task_id: str
    key: str = NO_KEY


def read_fast_header(message: bytes) -> FastHeader | None:
    """The fast header of one of our own messages; None for other messages, including those that only begin alike."""
    times = read_times(message)
    if times is None:
        return None
    task_id = message[_ID : message.index(b'"', _ID)]
    return times._replace(task_id=task_id.decode(errors="replace"))


def read_times(message: bytes) -> FastHeader | None:
    """The fast header without its id: it is the same for all messages of a flush, and is read once."""
    return _times(message[:_ID]) if message.find(b'"', _ID) > _ID else None


def key_of(message: bytes) -> bytes:
    """The tag of the key that sent a message, as `lua/message.lua` reads it: only to tell keys apart."""
    return message[_ID - 9 : _ID - 1] if message.startswith(HEAD) else _NOBODY


@lru_cache(maxsize=256)
def _times(head: bytes) -> FastHeader | None:
    found = _TIMES.fullmatch(head)
    if found is None:
        return None
    deadline, limit, enqueued, attempt, lost, tracked, ttl, key = found.groups()
    return FastHeader(
        int(deadline),
        int(limit),
        int(enqueued),
        int(attempt),
        int(lost),
        tracked == b"1",
        int(ttl),
        "",
        key.decode(),
    )


def write_fast_header(stamp: FastHeader) -> bytes:
    """The beginning of a message up to the end of its fast header, without the closing quote."""
    return (
        HEAD
        + (
            f"{stamp.deadline_ms:013d};{stamp.limit_ms:013d};{stamp.enqueued_ms:013d};"
            f"{stamp.attempt:02d};{stamp.lost:d};{stamp.tracked:d};{stamp.result_ttl_ms:09d};{stamp.key};{stamp.task_id}"
        ).encode()
    )

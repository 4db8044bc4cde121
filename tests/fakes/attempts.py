"""Attempts and losses as the scripts count them: in the fast header of a message, or in its headers."""

from __future__ import annotations

import re

from batching.fast_header import read_fast_header, write_fast_header

_COUNTED = re.compile(rb'"headers": \{"bunch_attempt": (\d\d?)')
_HEADERS = re.compile(rb'"headers": ?\{(\s*\})?')


def losses(message: bytes) -> int:
    stamp = read_fast_header(message)
    if stamp is not None:
        return stamp.lost
    counted = _COUNTED.search(message)
    return int(counted[1]) if counted else 0


def with_attempt(message: bytes, losses: int) -> bytes:
    """The message with one more failed delivery; `losses`: it then has at least this many losses."""
    stamp = read_fast_header(message)
    if stamp is not None:
        more = stamp._replace(
            limit_ms=stamp.deadline_ms,
            attempt=min(stamp.attempt + 1, 99),
            lost=min(max(stamp.lost + 1, losses) if losses else stamp.lost, 9),
        )
        return write_fast_header(more) + message[len(write_fast_header(stamp)) :]
    counted = _COUNTED.search(message)
    if counted:
        attempts = min(max(int(counted[1]) + 1, losses), 99)
        return message[: counted.start(1)] + b"%d" % attempts + message[counted.end(1) :]
    first = b'"headers": {"bunch_attempt": %d' % max(1, losses)
    if _HEADERS.search(message):
        return _HEADERS.sub(lambda found: first + (b"}" if found[1] else b", "), message, count=1)
    return re.sub(rb"^\s*\{", lambda _: b"{" + first + b"}, ", message, count=1)

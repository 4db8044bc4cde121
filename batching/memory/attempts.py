"""Attempts and losses as `batching/lua/message.lua` counts them: in the fast header of a message, or in its headers."""

from __future__ import annotations

import re

from batching.fast_header import FastHeader, read_fast_header, write_fast_header

_COUNTED = re.compile(rb'"headers": \{"bunch_attempt": (\d\d?)')
_HEADERS = re.compile(rb'"headers": ?\{(\s*\})?')


def losses(message: bytes) -> int:
    stamp = read_fast_header(message)
    if stamp is not None:
        return stamp.lost
    found = _COUNTED.search(message)
    return int(found[1]) if found else 0


def with_attempt(message: bytes, losses: int) -> bytes:
    """The message with one more failed delivery; `losses`: it then has at least this many losses."""
    stamp = read_fast_header(message)
    if stamp is not None:
        return with_header(message, counted(stamp, losses))
    found = _COUNTED.search(message)
    if found:
        attempts = min(max(int(found[1]) + 1, losses), 99)
        return message[: found.start(1)] + b"%d" % attempts + message[found.end(1) :]
    first = b'"headers": {"bunch_attempt": %d' % max(1, losses)
    if _HEADERS.search(message):
        return _HEADERS.sub(lambda found: first + (b"}" if found[1] else b", "), message, count=1)
    return re.sub(rb"^\s*\{", lambda _: b"{" + first + b"}, ", message, count=1)


def counted(header: FastHeader, losses: int) -> FastHeader:
    """The fast header with one more failed delivery; from then on only the deadline counts."""
    return header._replace(
        limit_ms=header.deadline_ms,
        attempt=min(header.attempt + 1, 99),
        lost=min(max(header.lost + 1, losses) if losses else header.lost, 9),
    )


def with_header(message: bytes, header: FastHeader) -> bytes:
    """The message of ours with another fast header of the same request, which is as long."""
    head = write_fast_header(header)
    return head + message[len(head) :]

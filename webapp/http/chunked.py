"""Decodes a chunked request body from bytes as they arrive.

Not llhttp's decoder: httptools tells neither where a message ended inside the bytes that it was fed, nor how long a
chunk is before it has arrived. The first is needed for pipelining, the second to refuse a large body at
once.
"""

from __future__ import annotations

import re

from webapp.http.errors import BodyTooLargeError, InvalidRequestError
from webapp.http.sized import Pieces

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# Well-formed extensions are ignored. No blank before the semicolon and no line ends in quotes, since proxies
# disagree about both.
_VALUE = rb'(?:%b|"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*")' % _TOKEN
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[ \t]*%b(?:=%b)?)*" % (_TOKEN, _VALUE))
_TRAILER = re.compile(rb"(%b):[\t -~\x80-\xff]*" % _TOKEN)
# Fields about framing, routing, authentication or content: RFC 9110 6.5.1 forbids them in a trailer. A proxy that
# merges them into the head would pass on a different request from the one that it checked.
_NOT_IN_TRAILERS = frozenset(
    b"content-length transfer-encoding host connection trailer te upgrade expect authorization cookie content-type"
    b" proxy-authorization content-encoding content-range range cache-control max-forwards x-tier"
    b" idempotency-key".split()
)
_LINE_MAX = 256
# Bytes of extensions, leading zeros and trailers.
_EXTRA_MAX = 8192
# Bytes that are not data (sizes, line ends, extensions), beyond an eighth of the data. A chunk costs the event loop as
# much as kilobytes do, so a client could keep it busy with bodies in chunks of one byte.
_FRAMING_MAX = 32 * 1024


class ChunkedBody:
    """Feed it until it returns the bytes that are left over; then `body` is complete.

    Raises `InvalidRequestError` for bad framing, and `BodyTooLargeError` as soon as a chunk's size passes the limit.
    Trailer fields are checked and dropped: WSGI has no place for them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._body = Pieces()
        self._announced = 0
        self._extra = self._framing = 0
        # Bytes of the current chunk still to come, including its CR LF; 0 between chunks.
        self._missing = 0
        self._in_trailer = False
        self._pending = b""

    in_place = False

    @property
    def held_bytes(self) -> int:
        """Bytes that it keeps in memory."""
        return len(self._body) + len(self._pending)

    def room(self, size: int) -> None:
        """Its bytes come between lines: `feed` it."""

    def filled(self, size: int) -> bytes | None:
        raise NotImplementedError("it has no room")

    @property
    def missing(self) -> int:
        """Bytes to receive next: unknown, so as many as there are."""
        return self._limit

    @property
    def body(self) -> bytes:
        return self._body.joined()

    def feed(self, data: bytes) -> bytes | None:
        """Return None while more is needed; afterwards the bytes that follow the body (may be empty)."""
        data = self._pending + data
        position = 0
        while True:
            if self._missing:
                position = self._take_data(data, position)
                if self._missing:
                    break
            end = data.find(b"\r\n", position)
            if end < 0:
                if len(data) - position > _LINE_MAX:
                    raise InvalidRequestError("A line of the chunked body is too long.")
                break
            line = data[position:end]
            position = end + 2
            if not self._in_trailer:
                self._begin_chunk(line)
            elif line:
                self._check_trailer(line)
            else:
                return data[position:]
        self._pending = data[position:]
        return None

    def _take_data(self, data: bytes, position: int) -> int:
        """Take the available data of the current chunk; its line end stays until both bytes are there."""
        if self._missing > 2:
            part = data[position : position + self._missing - 2]
            self._body.append(part)
            self._missing -= len(part)
            position += len(part)
        if self._missing == 2 and len(data) - position >= 2:
            if data[position : position + 2] != b"\r\n":
                raise InvalidRequestError("A chunk does not end where its size says.")
            self._missing = 0
            position += 2
        return position

    def _begin_chunk(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line) if len(line) <= _LINE_MAX else None
        if found is None:
            raise InvalidRequestError("A chunk's size must be hexadecimal digits, and its extensions `;name=value`.")
        size = int(found[1], 16)
        # The line end of the size, and the one after the data.
        self._framing += len(line) + 4
        self._count_extra(len(line) - len(f"{size:x}"))
        if size == 0:
            self._in_trailer = True
            return
        self._announced += size
        if self._announced > self._limit:
            raise BodyTooLargeError(f"The body is larger than {self._limit} bytes.")
        if self._framing > _FRAMING_MAX + self._announced // 8:
            raise InvalidRequestError("The body has too many small chunks: send larger ones.")
        self._missing = size + 2

    def _check_trailer(self, line: bytes) -> None:
        found = _TRAILER.fullmatch(line)
        if found is None:
            raise InvalidRequestError("A trailer field of the chunked body is not valid.")
        name = found[1].lower()
        if name in _NOT_IN_TRAILERS:
            raise InvalidRequestError(f"{name.decode()} must not be in a trailer: send it in the head.")
        self._count_extra(len(line))

    def _count_extra(self, count: int) -> None:
        self._extra += count
        if self._extra > _EXTRA_MAX:
            raise InvalidRequestError("The chunked body has too many extension or trailer bytes.")

"""A chunked request body: bytes as they arrive, to the body and what follows it.

Our own and not llhttp's, since httptools tells neither where a message ended inside the bytes it was fed nor how
long a chunk is before it has arrived: the first is needed for pipelining, the second to refuse a large body at
once.
"""

from __future__ import annotations

import re

from webapp.http.errors import BodyTooLargeError, InvalidRequestError
from webapp.http.limits import ServerLimits

# Extensions are read over. No blank before the semicolon, no quoted line ends: proxies disagree about both.
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t -~\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")
_LINE_MAX = 256
# All bytes that are neither data nor the least framing (size, line ends): extensions, leading zeros, trailers.
_EXTRA_MAX = 8192


class ChunkedBody:
    """Feed it until it returns what is left over; then `body` is whole.

    Raises `InvalidRequestError` for bad framing, `BodyTooLargeError` as soon as a chunk's size passes the
    limit. Trailer fields are checked and dropped: WSGI has no place for them.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limit = limits.body_bytes
        self._body = bytearray()
        self._announced = 0
        self._extra = 0
        # Bytes of the present chunk still to come, its CR LF included; 0 between chunks.
        self._missing = 0
        self._in_trailer = False
        self._pending = b""

    @property
    def body(self) -> bytes:
        return bytes(self._body)

    def feed(self, data: bytes) -> bytes | None:
        """None while more is needed; afterwards the bytes behind the body (maybe none)."""
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
        """Move what there is of the present chunk; its line end stays until both bytes are there."""
        if self._missing > 2:
            part = data[position : position + self._missing - 2]
            self._body += part
            self._missing -= len(part)
            position += len(part)
        if self._missing == 2 and len(data) - position >= 2:
            if data[position : position + 2] != b"\r\n":
                raise InvalidRequestError("A chunk does not end where its size says.")
            self._missing = 0
            position += 2
        return position

    def _begin_chunk(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None or len(line) > _LINE_MAX:
            raise InvalidRequestError("A chunk's size must be hexadecimal digits.")
        size = int(found[1], 16)
        self._count_extra(len(line) - len(f"{size:x}"))
        if size == 0:
            self._in_trailer = True
            return
        self._announced += size
        if self._announced > self._limit:
            raise BodyTooLargeError(f"The body is larger than {self._limit} bytes.")
        self._missing = size + 2

    def _check_trailer(self, line: bytes) -> None:
        if not _TRAILER.fullmatch(line):
            raise InvalidRequestError("A trailer field of the chunked body is not valid.")
        self._count_extra(len(line))

    def _count_extra(self, count: int) -> None:
        self._extra += count
        if self._extra > _EXTRA_MAX:
            raise InvalidRequestError("The chunked body has too many extension or trailer bytes.")

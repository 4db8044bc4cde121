"""A request body whose length was announced, and the pieces that any body is gathered from."""

from __future__ import annotations

_SMALL_BYTES = 4096


class Pieces:
    """Bytes in the order in which they came.

    Not one growing buffer, which is copied each time that it grows; and small pieces are put together, since a client
    that sends two bytes at a time would make an object of each.
    """

    __slots__ = ("_length", "_small", "_whole")

    def __init__(self) -> None:
        self._whole: list[bytes] = []
        self._small = bytearray()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, data: bytes) -> None:
        self._length += len(data)
        if len(data) < _SMALL_BYTES:
            self._small += data
            if len(self._small) < _SMALL_BYTES:
                return
            data = b""
        if self._small:
            self._whole.append(bytes(self._small))
            self._small.clear()
        if data:
            self._whole.append(data)

    def joined(self) -> bytes:
        return b"".join((*self._whole, self._small))


class SizedBody:
    """Feed it until it returns what is left over; then `body` is whole."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._body = Pieces()

    @property
    def held_bytes(self) -> int:
        """What it keeps in memory."""
        return len(self._body)

    @property
    def missing(self) -> int:
        return self._length - len(self._body)

    @property
    def body(self) -> bytes:
        return self._body.joined()

    def feed(self, data: bytes) -> bytes | None:
        """None while more is needed; afterwards the bytes behind the body (maybe none)."""
        missing = self.missing
        if len(data) <= missing:
            self._body.append(data)
            return None if len(data) < missing else b""
        self._body.append(data[:missing])
        return data[missing:]

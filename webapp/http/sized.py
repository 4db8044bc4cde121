"""A request body of announced length, and the buffer that collects any body."""

from __future__ import annotations

_SMALL_BYTES = 4096


class Pieces:
    """Bytes in the order in which they came.

    Not one growing buffer, which would be copied each time it grows. Small pieces are joined, since a client that sends
    two bytes at a time would create an object for each.
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
    """Feed it until it returns the bytes that are left over; then `body` is complete."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._body = Pieces()

    @property
    def held_bytes(self) -> int:
        """Bytes that it keeps in memory."""
        return len(self._body)

    @property
    def missing(self) -> int:
        return self._length - len(self._body)

    @property
    def body(self) -> bytes:
        return self._body.joined()

    def feed(self, data: bytes) -> bytes | None:
        """Return None while more is needed; afterwards the bytes that follow the body (may be empty)."""
        missing = self.missing
        if len(data) <= missing:
            self._body.append(data)
            return None if len(data) < missing else b""
        self._body.append(data[:missing])
        return data[missing:]

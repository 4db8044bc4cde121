"""A request body whose length was announced."""

from __future__ import annotations


class SizedBody:
    """Feed it until it returns what is left over; then `body` is whole.

    One growing buffer and no list of parts: a client that sends two bytes at a time would make an object of each.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._body = bytearray()

    @property
    def held_bytes(self) -> int:
        """What it keeps in memory."""
        return len(self._body)

    @property
    def missing(self) -> int:
        return self._length - len(self._body)

    @property
    def body(self) -> bytes:
        return bytes(self._body)

    def feed(self, data: bytes) -> bytes | None:
        """None while more is needed; afterwards the bytes behind the body (maybe none)."""
        missing = self.missing
        self._body += data[:missing]
        return None if len(data) < missing else data[missing:]

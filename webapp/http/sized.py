"""A request body of announced length, and the buffer that collects any body."""

from __future__ import annotations

import contextlib

from config.native import hot_path

_SMALL_BYTES = 4096
# From here on a body is received into its own memory, where there is the library in C. Below, pieces cost less.
IN_PLACE_BYTES = 128 * 1024


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
    """Feed it until it returns the bytes that are left over; then `body` is complete. A large one has `room` to receive
    into instead. The kernel gives it memory as it arrives, not as it is announced.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._body = Pieces()
        self._whole: bytes | None = None
        self._view = memoryview(b"")
        self._filled = 0
        if length >= IN_PLACE_BYTES and hot_path is not None:
            # Without so much address space, what really comes is kept.
            with contextlib.suppress(MemoryError):
                self._whole, self._view = hot_path.unfilled(length)

    @property
    def held_bytes(self) -> int:
        """Bytes that it keeps in memory."""
        return self._filled or len(self._body)

    @property
    def in_place(self) -> bool:
        """True if its bytes come into their own memory."""
        return self._whole is not None

    @property
    def missing(self) -> int:
        return self._length - self.held_bytes

    @property
    def body(self) -> bytes:
        if self._whole is None:
            return self._body.joined()
        # Nobody can write to it from now on.
        self._view.release()
        return self._whole

    def room(self, size: int) -> memoryview | None:
        """The place of its next bytes, at most `size` of them; None: `feed` it."""
        return None if self._whole is None else self._view[self._filled : self._filled + size]

    def filled(self, size: int) -> bytes | None:
        """So many bytes are in the `room`. Returns what `feed` does."""
        self._filled += size
        return None if self.missing else b""

    def feed(self, data: bytes) -> bytes | None:
        """Return None while more is needed; afterwards the bytes that follow the body (may be empty)."""
        missing = self.missing
        if self._whole is not None:
            mine = data[:missing]
            self._view[self._filled : self._filled + len(mine)] = mine
            return None if self.filled(len(mine)) is None else data[missing:]
        if len(data) <= missing:
            self._body.append(data)
            return None if len(data) < missing else b""
        self._body.append(data[:missing])
        return data[missing:]

"""Balances accepted connections over the workers: a shared board says how many connections each one holds.

The kernel wakes every worker for a new connection, and the fastest takes it: often the same worker twenty times in a
row, and keep-alive makes that last. So a worker that holds more than another lets the others go first for a moment.
"""

from __future__ import annotations

import mmap
import time

_SLOTS = 64
# A worker that has not beaten for this long is not considered.
_STALE_S = 3.0


class AcceptBalance:
    """The shared board, made before the fork. Beyond 64 workers two share a slot: they balance badly, nothing worse."""

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, _SLOTS * 16)).cast("d")

    def seat(self, number: int) -> Seat:
        return Seat(self._memory, number % _SLOTS)


class Seat:
    """One worker's slot on the board: `beat()` each second, `publish()` at each change, `leave()` at the end."""

    def __init__(self, memory: memoryview[float], slot: int) -> None:
        self._memory = memory
        self._slot = slot
        self._others: list[int] = []

    def beat(self) -> None:
        # CLOCK_MONOTONIC is the same clock for all processes.
        now = time.monotonic()
        memory = self._memory
        memory[_SLOTS + self._slot] = now
        self._others = [slot for slot in range(_SLOTS) if slot != self._slot and memory[_SLOTS + slot] > now - _STALE_S]

    def publish(self, connections: float) -> None:
        self._memory[self._slot] = connections

    def may_take(self) -> bool:
        """True if no other worker holds clearly fewer connections: one, two or an eighth do not matter."""
        memory = self._memory
        own = memory[self._slot]
        return all(own <= 2 + memory[slot] * 1.125 for slot in self._others)

    def leave(self) -> None:
        """Clear the slot, so that no other worker considers this one."""
        self._memory[_SLOTS + self._slot] = 0.0

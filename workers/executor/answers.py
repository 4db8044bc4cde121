"""The answers of an executor's child, read by the thread that waits for them.

    collector ──receive──▶ poll ──▶ the child's socket ──▶ each message to the executor ──▶ its events
                                └─▶ whatever else has become an event: a death, an interrupt

A thread between the two would cost each batch a wake-up and two turns of the interpreter's lock. The supervisor reads
as well, but only when something else has woken it: before it judges a child, nothing of it may lie unread.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from batching.executor import Event
from workers.executor.ipc import BrokenFrames, ToParent
from workers.executor.process import ChildProcess, milliseconds


class Wake:
    """Ends another thread's `poll`, the current or the next one."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
            # A thread may still be in its poll when the owner is done.
            weakref.finalize(self, os.close, end)

    def fileno(self) -> int:
        return self._read_end

    def set(self) -> None:
        # Full: it is set already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_end, b"w")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_end, 4096)


class Answers:
    """The events of one executor, over all of its children.

    Args:
        take: is given each message of the child, in order, and adds what is an event; never by two threads at once. It
            may raise BrokenFrames.
        on_end: called when the child can be read no further.
    """

    def __init__(self, take: Callable[[ToParent], None], on_end: Callable[[], None]) -> None:
        self._take = take
        self._on_end = on_end
        self._events: deque[Event | None] = deque()
        self._changed = Wake()
        # While it is held, nobody else reads.
        self.reading = threading.RLock()
        self._child: ChildProcess | None = None
        self._polled: ChildProcess | None = None
        self._poll = self._made_poll(None)
        self.broken: BrokenFrames | None = None
        # What had come of an answer that was not whole, when all was read last.
        self._part_bytes = 0

    def serve(self, child: ChildProcess) -> None:
        """Read this child from now on."""
        with self.reading:
            self._child, self.broken = child, None
        self._changed.set()

    def leave(self) -> None:
        """Do not touch the child any more."""
        with self.reading:
            self._child = None
        self._changed.set()

    def add(self, event: Event | None) -> None:
        """Add an event, for whoever asks next; `put` also wakes who waits."""
        self._events.append(event)

    def put(self, event: Event | None) -> None:
        self._events.append(event)
        self._changed.set()

    def interrupt(self) -> None:
        """Have `receive` return None, after all that has arrived so far."""
        self.read_all()
        self.put(None)

    def wake(self) -> None:
        """Wake who waits: there are events that another thread has added."""
        self._changed.set()

    def receive(self, timeout_s: float) -> Event | None:
        """The next event; None when there was none within `timeout_s`, or it is an interrupt. For one thread."""
        until = time.monotonic() + timeout_s
        while not self._events:
            left_s = until - time.monotonic()
            found = self._current_poll().poll(milliseconds(left_s))
            if not found and left_s <= 0:
                return None
            for descriptor, _ in found:
                if descriptor == self._changed.fileno():
                    self._changed.clear()
                else:
                    self._read(once=True)
        return self._events.popleft()

    def read_all(self) -> bool:
        """Read all that has arrived, without blocking. Returns whether more of an answer has come that is not whole."""
        with self.reading:
            self._read(once=False)
            before, self._part_bytes = self._part_bytes, self._child.part_bytes if self._child is not None else 0
            if self._events:
                self._changed.set()
            return 0 < self._part_bytes != before

    def _read(self, *, once: bool) -> None:
        with self.reading:
            child = self._child
            if child is None:
                return
            try:
                for message in child.messages(once=once):
                    self._take(message)
            except BrokenFrames as error:
                self.broken = error
            if self.broken or child.has_ended:
                self._child = None
                self._on_end()

    def _current_poll(self) -> select.poll:
        if self._child is not self._polled:
            # Nobody closes it meanwhile.
            with self.reading:
                self._poll, self._polled = self._made_poll(self._child), self._child
        return self._poll

    def _made_poll(self, child: ChildProcess | None) -> select.poll:
        poll = select.poll()
        poll.register(self._changed, select.POLLIN)
        if child is not None:
            child.watch_answers(poll)
        return poll

"""Two batches at once in a model with `prepare` or `finish`, which run beside the `predict` of the batches around it.

    pipe ──▶ prepare thread: decode, prepare ──▶ main thread: predict ──▶ finish thread: finish, encode, answer
                                                     ▲                          │
                                                     └── what went wrong ───────┘

`predict` stays in the main thread, where the model was loaded, and batches are answered in the order of their arrival.
A batch that needs more than one call that goes through leaves this path: the main thread waits until the batch before
it is answered, and then runs it by itself (`BatchComputer.compute`), with what its first call came to. Suspects, and
batches of several calls, run by themselves from the start: nothing is prepared beside them. No stage is ever in two
threads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

from batching.request import Done
from workers.executor.call import Call
from workers.executor.compute import Batch, BatchComputer
from workers.executor.ipc import Fault, FrameReader

# Sends what a batch came to. Never called by two threads at once.
Send = Callable[[Done | None, Fault | None], None]


class _Item(NamedTuple):
    """A batch and its call; None where it must run by itself."""

    batch: Batch
    call: Call | None


class _Wake:
    """Tells the main thread that the batch before is not answered, but left for it."""


class Overlap:
    """Serves the batches of a pipe. The worker sends at most one batch ahead, which bounds what is in memory here."""

    def __init__(self, reader: FrameReader, computer: BatchComputer, send: Send) -> None:
        self._reader = reader
        self._computer = computer
        self._send = send
        self._ahead: SimpleQueue[_Item | _Wake | BaseException | None] = SimpleQueue()
        # Batches on their way through `finish`, at most one; and whether each was answered.
        self._finishing: SimpleQueue[tuple[Batch, Call]] = SimpleQueue()
        self._answered: SimpleQueue[bool | BaseException] = SimpleQueue()
        self._before: tuple[Batch, Call] | None = None
        # Not set while a batch runs by itself.
        self._shared = threading.Event()
        self._shared.set()
        # Held during `prepare` of the next batch, and while a batch runs by itself, through all stages.
        self._preparing = threading.Lock()

    def run(self) -> None:
        """Serve until the pipe ends; called in the main thread."""
        for name, target in (("prepare", self._prepare), ("finish", self._finish)):
            threading.Thread(target=target, name=name, daemon=True).start()
        while (item := self._ahead.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, _Item):
                self._predict(*item)
            else:
                self._settle()
            del item
        self._settle()

    def _prepare(self) -> None:
        try:
            while (work := self._reader.next()) is not None:
                self._shared.wait()
                batch = self._computer.decode(work)
                with self._preparing:
                    call = self._computer.only_call(batch)
                    if call is None:
                        self._shared.clear()
                    else:
                        call.prepare()
                self._ahead.put(_Item(batch, call))
                # The worker writes the next batch into memory that it knows already, once nobody looks at this one.
                del work, batch, call
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self._ahead.put(error)
        else:
            self._ahead.put(None)

    def _predict(self, batch: Batch, call: Call | None) -> None:
        if call is not None:
            call.predict()
        self._settle()
        if call is None:
            self._by_itself(batch)
            self._shared.set()
        elif call.error is not None:
            self._by_itself(batch, call)
        else:
            self._before = (batch, call)
            self._finishing.put(self._before)

    def _settle(self) -> None:
        """Wait until the batch before is answered, and run it by itself if its call has not gone through."""
        before, self._before = self._before, None
        if before is None:
            return
        answered = self._answered.get()
        if isinstance(answered, BaseException):
            raise answered
        if not answered:
            self._by_itself(*before)

    def _by_itself(self, batch: Batch, first: Call | None = None) -> None:
        with self._preparing:
            told = self._computer.compute(batch, first)
        self._send(*told)

    def _finish(self) -> None:
        while True:
            batch, call = self._finishing.get()
            answered = False
            try:
                call.finish()
                done = self._computer.outcome(batch, call)
                if done is not None:
                    self._send(done, None)
                    answered = True
            except BaseException as error:  # noqa: BLE001 - raised in the main thread
                # It waits at either, depending on whether there is a next batch.
                self._answered.put(error)
                self._ahead.put(error)
                return
            self._answered.put(answered)
            if not answered:
                self._ahead.put(_Wake())
            del batch, call

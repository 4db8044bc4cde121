"""The batches of a pipe, one after the other, the next one decoded while the model runs the one before."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from batching.request import Work
from workers.executor.compute import Batch
from workers.executor.ipc import FrameReader

# After a shorter batch the next one is not decoded beside it: it would wait for another thread longer than it gains.
_WORTH_S = 0.001


class Batches:
    """For the thread that computes. A second thread reads and decodes during long batches, so that a GPU never waits
    for JSON. How long a batch takes is expected from the one before it.

    The worker sends at most one batch ahead, which bounds the memory here.
    """

    def __init__(
        self, reader: FrameReader, decode: Callable[[Work], Batch], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader = reader
        self._decode = decode
        self._clock = clock
        # Not known yet.
        self._last_s = math.inf
        # Whether the other thread reads the next batch.
        self._is_read_ahead = False
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._ahead: SimpleQueue[Batch | BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def next(self) -> Batch | None:
        """Block for the next batch; None after the last. Raises what reading or decoding it raises."""
        if not self._is_read_ahead:
            return self._read()
        self._is_read_ahead = False
        item = self._ahead.get()
        if isinstance(item, BaseException):
            raise item
        return item

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """The time in which a batch is computed."""
        began = self._clock()
        if self._last_s >= _WORTH_S:
            self._read_ahead()
        yield
        self._last_s = self._clock() - began

    def _read(self) -> Batch | None:
        work = self._reader.next()
        return None if work is None else self._decode(work)

    def _read_ahead(self) -> None:
        self._is_read_ahead = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="decode", daemon=True)
            self._thread.start()
        self._asked.put(None)

    def _serve(self) -> None:
        while True:
            self._asked.get()
            try:
                self._ahead.put(self._read())
            except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
                self._ahead.put(error)

"""Several observers as one."""

from __future__ import annotations

from collections.abc import Sequence

from batching.ports import BatchInfo, Observer
from batching.request import Outcome, Request


class Observers:
    """`batching.ports.Observer`: tells each of `observers` in turn."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        for each in self._observers:
            each.claimed(requests, batch)

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        for each in self._observers:
            each.finished(settled, batch)

    def retried(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        for each in self._observers:
            each.retried(requests, batch, why)

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        for each in self._observers:
            each.returned(requests, batch, why)

"""Celery's set of active requests, safe to walk through while the claim loops' threads change it.

Celery walks `celery.worker.state.active_requests` on its main thread: for `inspect active`, and when it has lost its
broker (`Consumer.on_close`). A `WeakSet` that another thread changes meanwhile raises `RuntimeError` there, and in the
second place the worker ends of it. And it is asked once in a while, where batches come and go by the hundred a second:
so a batch enters as a whole, and what Celery wants to see of its requests is made when somebody looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import ReferenceType, WeakSet, ref

_changing = threading.Lock()


class _Batch:
    __slots__ = ("made", "make", "size")

    def __init__(self, size: int, make: Callable[[], Sequence[Any]]) -> None:
        self.size = size
        self.make = make
        self.made: Sequence[Any] = ()


class ActiveRequests(WeakSet[Any]):
    """A WeakSet whose every change puts a new set of references into the place of the old one (`WeakSet.data`): whoever
    walks through the old one comes to its end.
    """

    data: set[ReferenceType[Any]]
    batches: dict[str, _Batch]
    _pending_removals: list[ReferenceType[Any]]
    _remove: Callable[[ReferenceType[Any]], None]

    def enter(self, batch_id: str, size: int, make: Callable[[], Sequence[Any]]) -> None:
        """A batch of `size` requests; `make` gives what stands for them, when somebody looks."""
        self.batches[batch_id] = _Batch(size, make)

    def leave(self, batch_id: str) -> int:
        """How many requests have left with it."""
        batch = self.batches.pop(batch_id, None)
        if batch is None:
            return 0
        if batch.made:
            self.difference_update(batch.made)
        return batch.size

    def look(self, batch_id: str) -> Sequence[Any]:
        """What stands for the requests of a batch; nothing of one that has left."""
        batch = self.batches.get(batch_id)
        return () if batch is None else self._made(batch)

    def _made(self, batch: _Batch) -> Sequence[Any]:
        with _changing:
            made = batch.made = batch.made or batch.make()
        # Should it leave in this moment, nobody holds them any more.
        self.update(made)
        return made

    def __iter__(self) -> Iterator[Any]:
        for batch in tuple(self.batches.values()):
            if not batch.made:
                self._made(batch)
        return super().__iter__()

    def __len__(self) -> int:
        return super().__len__() + sum(batch.size for batch in tuple(self.batches.values()) if not batch.made)

    def clear(self) -> None:
        self.batches.clear()
        super().clear()

    def update(self, other: Iterable[Any]) -> None:
        self._change(set.union, {ref(each, self._remove) for each in other})

    def difference_update(self, other: Iterable[Any]) -> None:
        self._change(set.difference, {ref(each) for each in other})

    def add(self, item: Any) -> None:
        self.update((item,))

    def discard(self, item: Any) -> None:
        self.difference_update((item,))

    def _change(self, how: Callable[[set[Any], set[Any]], set[Any]], references: set[ReferenceType[Any]]) -> None:
        with _changing:
            # Those that died meanwhile as well: their callbacks may still be meant for the old set.
            self.data = {each for each in how(self.data, references) if each() is not None}
            self._pending_removals.clear()


def make_walkable(requests: WeakSet[Any]) -> ActiveRequests:
    """Celery's modules have imported the object by name: it stays the same, and changes its ways."""
    if not isinstance(requests, ActiveRequests):
        requests.__class__ = ActiveRequests
        requests.batches = {}  # type: ignore[attr-defined]
    assert isinstance(requests, ActiveRequests)
    return requests

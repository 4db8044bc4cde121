"""Celery's set of active requests, made safe to iterate while the claim loops' threads change it.

Celery iterates over `celery.worker.state.active_requests` on its main thread: for `inspect active`, and when it has
lost its broker (`Consumer.on_close`). If another thread changes a `WeakSet` meanwhile, that raises `RuntimeError`,
which in the second place ends the worker. The set is read rarely, but batches come and go by the hundred a second. So a
batch is added as a whole, and the objects that Celery wants for its requests are made when the set is read.
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
    """A WeakSet that replaces its set of references (`WeakSet.data`) at every change, so that an iteration over the old
    one can finish.
    """

    data: set[ReferenceType[Any]]
    batches: dict[str, _Batch]
    _pending_removals: list[ReferenceType[Any]]
    _remove: Callable[[ReferenceType[Any]], None]

    def enter(self, batch_id: str, size: int, make: Callable[[], Sequence[Any]]) -> None:
        """Add a batch of `size` requests; `make` makes the objects that stand for them, when somebody reads."""
        self.batches[batch_id] = _Batch(size, make)

    def leave(self, batch_id: str) -> int:
        """Remove a batch; returns how many requests it had."""
        batch = self.batches.pop(batch_id, None)
        if batch is None:
            return 0
        if batch.made:
            self.difference_update(batch.made)
        return batch.size

    def look(self, batch_id: str) -> Sequence[Any]:
        """The objects that stand for the requests of a batch; none for a batch that has left."""
        batch = self.batches.get(batch_id)
        return () if batch is None else self._made(batch)

    def _made(self, batch: _Batch) -> Sequence[Any]:
        with _changing:
            made = batch.made = batch.made or batch.make()
        # If the batch leaves at this moment, nothing else holds the objects.
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
            # Without those that died meanwhile: their callbacks may still refer to the old set.
            self.data = {each for each in how(self.data, references) if each() is not None}
            self._pending_removals.clear()


def make_walkable(requests: WeakSet[Any]) -> ActiveRequests:
    """Change the object in place, since Celery's modules have imported it by name."""
    if not isinstance(requests, ActiveRequests):
        requests.__class__ = ActiveRequests
        requests.batches = {}  # type: ignore[attr-defined]
    assert isinstance(requests, ActiveRequests)
    return requests

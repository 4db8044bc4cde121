"""Celery's set of active requests, safe to walk through while the claim loops' threads change it.

Celery walks `celery.worker.state.active_requests` on its main thread: for `inspect active`, and when it has lost its
broker (`Consumer.on_close`). A `WeakSet` that another thread changes meanwhile raises `RuntimeError` there, and in the
second place the worker ends of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ReferenceType, WeakSet, ref

_changing = threading.Lock()


class ActiveRequests(WeakSet[Any]):
    """A WeakSet whose every change puts a new set of references into the place of the old one (`WeakSet.data`).

    Whoever walks through the old one comes to its end. They are small: two batches for each executor.
    """

    data: set[ReferenceType[Any]]
    _pending_removals: list[ReferenceType[Any]]
    _remove: Callable[[ReferenceType[Any]], None]

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


def make_walkable(requests: WeakSet[Any]) -> None:
    """Celery's modules have imported the object by name: it stays the same, and changes its ways."""
    requests.__class__ = ActiveRequests

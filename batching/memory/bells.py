"""The bells of collocated mode: one token a model, as `bunch:bell:<model>` is in Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any


class _Bell:
    """The bell of one model, with the events of those who wait for it."""

    __slots__ = ("listeners", "rung")

    def __init__(self) -> None:
        self.rung = False
        self.listeners: list[threading.Event] = []


class Bells:
    """`lock` is that of their store; it may be held by whoever rings."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._bells: dict[str, _Bell] = {}

    def ring(self, model: str) -> None:
        with self._lock:
            bell = self._bell(model)
            if not bell.rung:
                bell.rung = True
                for each in bell.listeners:
                    each.set()

    def silence(self, model: str) -> None:
        """Take the token, if there is one."""
        with self._lock:
            self._bell(model).rung = False

    def wait(self, models: Sequence[str], timeout_s: float) -> str | None:
        """Block for a token of one of the models, and take it; returns whose it was, None after `timeout_s`."""
        until = time.monotonic() + timeout_s
        while True:
            with self._lock:
                rung = next((each for each in models if self._bell(each).rung), None)
                if rung is not None:
                    self._bell(rung).rung = False
                    return rung
                heard = threading.Event()
                for each in models:
                    self._bell(each).listeners.append(heard)
            left_s = until - time.monotonic()
            told = left_s > 0 and heard.wait(left_s)
            with self._lock:
                for each in models:
                    self._bell(each).listeners.remove(heard)
            # Another loop may have taken the token.
            if not told:
                return None

    def _bell(self, model: str) -> _Bell:
        bell = self._bells.get(model)
        if bell is None:
            bell = self._bells[model] = _Bell()
        return bell

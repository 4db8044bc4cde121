"""The batches of a pipe: the next one is read ahead only where a batch takes long enough."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from workers.executor.batches import Batches


class Pipe:
    """A reader of works that are numbers; remembers the thread of each read."""

    def __init__(self, *works: Any) -> None:
        self._works = list(works)
        self.threads: list[str] = []

    def next(self) -> Any:
        self.threads.append(threading.current_thread().name)
        work = self._works.pop(0)
        if isinstance(work, Exception):
            raise work
        return work


def decoded(work: Any) -> Any:
    if work == "bad":
        raise ValueError("it cannot be decoded")
    return f"decoded {work}"


Serve = Callable[..., tuple[list[Any], Pipe]]


@pytest.fixture
def serve() -> Serve:
    def serve(*works: Any, seconds: list[float]) -> tuple[list[Any], Pipe]:
        """Compute all batches, each for so many seconds."""
        pipe, now = Pipe(*works), [0.0]
        batches: Any = Batches(pipe, decoded, lambda: now[0])  # type: ignore[arg-type]
        got = []
        while (batch := batches.next()) is not None:
            got.append(batch)
            with batches.computing():
                now[0] += seconds[len(got) - 1]
        return got, pipe

    return serve


def test_after_a_short_batch_the_next_is_read_by_the_thread_that_computes(serve: Serve) -> None:
    got, pipe = serve(1, 2, 3, None, seconds=[0.0001] * 3)
    assert got == ["decoded 1", "decoded 2", "decoded 3"]
    # How long the first takes is not known.
    assert pipe.threads == ["MainThread", "decode", "MainThread", "MainThread"]


def test_during_a_long_batch_the_next_is_read_and_decoded(serve: Serve) -> None:
    got, pipe = serve(1, 2, 3, 4, None, seconds=[0.01, 0.01, 0.0001, 0.0001])
    assert got == ["decoded 1", "decoded 2", "decoded 3", "decoded 4"]
    assert pipe.threads == ["MainThread", "decode", "decode", "decode", "MainThread"]


@pytest.mark.parametrize("seconds", [0.01, 0.0001])
def test_what_goes_wrong_is_raised_where_the_batch_is_asked_for(serve: Serve, seconds: float) -> None:
    with pytest.raises(OSError, match="the pipe broke"):
        serve(1, 2, OSError("the pipe broke"), seconds=[seconds] * 2)
    with pytest.raises(ValueError, match="it cannot be decoded"):
        serve(1, 2, "bad", seconds=[seconds] * 2)

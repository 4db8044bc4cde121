"""Waits for new work in several shards: the bells of one server in one BLPOP, and all servers polled together.

    thread ──┐
    thread ──┤ one of them listens for all  ──▶ BLPOP s0 s1 … on server 1 ┐
    thread ──┘ the others wait for its turn     BLPOP s2 s3 … on server 2 ┴─▶ the first token wakes it; the next listens

So a worker has one connection to each server for the bells of a model, however many executors wait. Whoever listens
takes the token itself: a lone caller pays for no hand-over between threads.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence

from redis import Redis
from redis.exceptions import RedisError

from batching.claim.bell import Bell

OnAway = Callable[[int, RedisError], None]


class Bells:
    """The bells of several servers. It belongs to one thread at a time, and has a connection to each server.

    Args:
        servers: their clients.
        on_away: called with the number of a server that does not answer, and its error.
    """

    def __init__(self, servers: Sequence[Redis], on_away: OnAway) -> None:
        self._bells = [Bell(each) for each in servers]
        self._on_away = on_away

    def wait(
        self, keys: Sequence[Sequence[str]], timeout_s: float, ask_s: float = 0.0, leave_for: Sequence[int] = ()
    ) -> str | None:
        """The list that had a token within `timeout_s`, or since the last wait ended; None without one.

        `keys`: those of each server; none: it is left out. `ask_s`, `leave_for`: see `Bell.wait`; it ends when any of
        them is readable. Raises RedisError if no server answers.
        """
        until = time.monotonic() + max(timeout_s, 0.001)
        while True:
            listening = self._listen(keys, until, ask_s)
            ready = self._poll([*listening, *leave_for], until)
            for fileno in ready:
                if fileno in listening:
                    rung = self._take(listening[fileno])
                    if rung is not None:
                        return rung
            if not ready or any(fileno in leave_for for fileno in ready) or time.monotonic() >= until:
                return None

    def close(self) -> None:
        for bell in self._bells:
            bell.close()

    def _listen(self, keys: Sequence[Sequence[str]], until: float, ask_s: float) -> dict[int, int]:
        """The servers by file descriptor. Raises RedisError if none answers."""
        listening: dict[int, int] = {}
        failure: RedisError | None = None
        for number, (bell, of_server) in enumerate(zip(self._bells, keys, strict=True)):
            if not of_server:
                bell.close()
                continue
            try:
                listening[bell.listen(of_server, until, ask_s)] = number
            except RedisError as error:
                self._on_away(number, error)
                failure = error
        if failure is not None and not listening:
            raise failure
        return listening

    def _take(self, number: int) -> str | None:
        try:
            return self._bells[number].take()
        except RedisError as error:
            self._on_away(number, error)
            return None

    @staticmethod
    def _poll(filenos: Sequence[int], until: float) -> list[int]:
        readable = select.poll()
        for each in filenos:
            readable.register(each, select.POLLIN)
        return [fileno for fileno, _ in readable.poll(max(0.0, until - time.monotonic()) * 1000)]


class SharedBells:
    """`Bells` for all threads that wait for the same lists."""

    def __init__(self, bells: Bells) -> None:
        self._bells = bells
        self._turn = threading.Condition()
        self._listens = False
        self._waiting = 0

    def wait(self, keys: Callable[[], Sequence[Sequence[str]]], timeout_s: float) -> str | None:
        """`Bells.wait`. `keys` is asked when it is this thread's turn to listen."""
        until = time.monotonic() + timeout_s
        with self._turn:
            self._waiting += 1
            try:
                if not self._turn.wait_for(lambda: not self._listens, timeout_s):
                    return None
                self._listens = True
            finally:
                self._waiting -= 1
        try:
            return self._bells.wait(keys(), until - time.monotonic())
        finally:
            with self._turn:
                self._listens = False
                self._turn.notify()

    def leave(self) -> None:
        """The calling thread does not wait for a while. If nobody else does, end the open BLPOPs."""
        with self._turn:
            if not (self._listens or self._waiting):
                self._bells.close()

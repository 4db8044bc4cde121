"""Blocking waits for new work, accurate to a millisecond."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from config.redis import dedicated_connection
from config.redis_errors import Meaning, meaning_of

# For the rest of an answer that has begun to come.
_READ_S = 0.1


class Bell:
    """Blocks on lists that producers push a token to. It belongs to one thread, and has a connection of its own.

    Redis ends a BLPOP without a token only when it next wakes up, at the latest in its cron: with the default `hz 10`,
    a wait of 20 ms took 58 to 99 ms on an idle server. So the timeout is kept here, and the BLPOP may still be open
    after it. It is answered with the server's next command, usually the claim that follows.
    """

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._connection: Any = None
        self._readable = select.poll()
        self._asked: Sequence[str] = ()
        self._leave_for: int | None = None

    def wait(
        self, keys: Sequence[str], timeout_s: float, ask_s: float = 0.0, leave_for: int | None = None
    ) -> str | None:
        """The list of `keys` that had a token within `timeout_s`, or since the previous wait ended; None without one.

        `ask_s`: how long one BLPOP stays open across waits for the same keys; it must be shorter than the client's
        timeout. `leave_for`: a file descriptor; the wait ends without a token once it is readable. Raises RedisError.
        """
        self._leave_for = leave_for
        reused = self._connection is not None
        try:
            return self._wait(keys, max(timeout_s, 0.001), ask_s)
        except BaseException as error:
            # The open BLPOP may be answered at any time, and that would be taken for the next reply.
            self.close()
            if not (reused and _is_over(error)):
                raise
            # Redis may only have restarted; the caller looks again now, and finds out.
            return None

    def listen(self, keys: Sequence[str], until: float, ask_s: float = 0.0) -> int:
        """Have a BLPOP open, for whoever polls several bells; returns the file descriptor that tells of its answer.

        Raises RedisError.
        """
        if self._asked and self._asked != keys:
            # As in `_wait`.
            self.close()
        reused = self._connection is not None
        try:
            self._connect()
            if not self._asked:
                self._ask(keys, until, ask_s)
        except BaseException as error:
            self.close()
            if not (reused and _is_over(error)):
                raise
            return self.listen(keys, until, ask_s)
        return int(self._connection._sock.fileno())  # noqa: SLF001 - redis-py has no other way

    def take(self) -> str | None:
        """The list whose token the open BLPOP was answered with; None if its time was over, or the connection."""
        try:
            return self._answer(time.monotonic() + _READ_S)
        except BaseException as error:
            self.close()
            if not _is_over(error):
                raise
            return None

    def close(self) -> None:
        connection, self._connection, self._asked = self._connection, None, ()
        if connection is not None:
            connection.disconnect()

    def _wait(self, keys: Sequence[str], timeout_s: float, ask_s: float) -> str | None:
        if self._asked and self._asked != keys:
            # Another thread may wait for these keys, and would miss the token.
            self.close()
        self._connect()
        until = time.monotonic() + timeout_s
        if self._asked:
            rung = self._answer(until)
            # The empty answer of an earlier BLPOP says nothing about now.
            if rung is not None or self._asked:
                return rung
        self._ask(keys, until, ask_s)
        return self._answer(until)

    def _connect(self) -> None:
        if self._connection is None:
            self._connection = dedicated_connection(self._pool)
            self._readable = select.poll()
            self._readable.register(self._connection._sock, select.POLLIN)  # noqa: SLF001 - redis-py has no other way

    def _ask(self, keys: Sequence[str], until: float, ask_s: float) -> None:
        self._connection.send_command("BLPOP", *keys, max(until - time.monotonic(), ask_s, 0.001))
        self._asked = keys

    def _answer(self, until: float) -> str | None:
        """The list in which the open BLPOP found a token; None if there was no answer by then, and it stays open."""
        left_s = max(until - time.monotonic(), 0.0)
        # An idle worker comes here several times a second, and redis-py makes two exceptions of a timeout.
        if not self._rings(left_s):
            return None
        try:
            left_s = max(until - time.monotonic(), 0.0)
            popped = self._connection.read_response(timeout=left_s, disconnect_on_error=False)
        except RedisTimeoutError:
            return None
        self._asked = ()
        return None if popped is None else popped[0].decode()

    def _rings(self, left_s: float) -> bool:
        """Return whether the BLPOP is answered, after at most `left_s`."""
        if self._leave_for is None:
            return bool(self._readable.poll(left_s * 1000))
        self._readable.register(self._leave_for, select.POLLIN)
        try:
            ready = self._readable.poll(left_s * 1000)
        finally:
            self._readable.unregister(self._leave_for)
        return any(each != self._leave_for for each, _ in ready)


def _is_over(error: BaseException) -> bool:
    """Return whether another connection may do: this one is broken, or its server has not the lists any more."""
    moved = isinstance(error, ResponseError) and meaning_of(error) is Meaning.ANEW
    return moved or isinstance(error, RedisConnectionError)

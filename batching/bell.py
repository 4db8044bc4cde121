"""Waiting for a producer's ring, to the millisecond."""

from __future__ import annotations

import time
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from config.redis import dedicated_connection


class Bell:
    """Blocks on a list that producers push a token to. One thread's, on a connection of its own.

    Redis ends a BLPOP that nobody answered when it next wakes up anyway, in its cron at the latest: with `hz 10`, its
    default, a wait of 20 ms took 58 to 99 on an idle server. So the time is kept here, and what is then still asked may
    be answered whenever it will: the next command of anybody's, usually the claim that follows, makes the server look.
    """

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._connection: Any = None
        self._asked = False

    def wait(self, key: str, timeout_s: float) -> bool:
        """Whether there was a token within `timeout_s`, or since the wait before ended. Raises RedisError."""
        reused = self._connection is not None
        try:
            return self._wait(key, max(timeout_s, 0.001))
        except RedisConnectionError:
            self.close()
            if not reused:
                raise
            # Redis may only have restarted; whoever waits looks again now, and finds out.
            return False
        except BaseException:
            # What is still asked on this connection may be answered any time, and would be taken for the next answer.
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection, self._asked = self._connection, None, False
        if connection is not None:
            connection.disconnect()

    def _wait(self, key: str, timeout_s: float) -> bool:
        if self._connection is None:
            self._connection = dedicated_connection(self._pool)
        until = time.monotonic() + timeout_s
        # An old question's "nothing" says nothing about now.
        if self._asked and (self._answer(until) or self._asked):
            return not self._asked
        self._connection.send_command("BLPOP", key, max(until - time.monotonic(), 0.001))
        self._asked = True
        return self._answer(until)

    def _answer(self, until: float) -> bool:
        """Whether what was asked found a token; it is still asked if there was no answer by then."""
        try:
            left_s = max(until - time.monotonic(), 0.0)
            token = self._connection.read_response(timeout=left_s, disconnect_on_error=False)
        except RedisTimeoutError:
            return False
        self._asked = False
        return token is not None

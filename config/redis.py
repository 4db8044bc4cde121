"""Redis clients with bounded waits and without retries of their own.

redis-py 8 retries a command up to ten times by default. A claim or a submit that is run twice is a lost or a doubled
message, so the caller decides what may be repeated.
"""

from __future__ import annotations

import hashlib
import re
import select
from collections.abc import Callable, Sequence
from queue import LifoQueue
from typing import Any

import hiredis
from redis import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from config import cluster, sentinel
from config.cluster import Slot, absent_key, guarded
from config.native import hot_path
from config.redis_errors import Meaning, meaning_of, will_repeat
from config.redis_url import cluster_of, redis_py_url, sentinels_of


def connect(
    url: str,
    *,
    timeout_s: float = 5.0,
    connect_timeout_s: float = 1.0,
    max_connections: int = 64,
    queue_class: type[Any] = LifoQueue,
    shard_tag: str = "",
) -> Redis:
    """A client for `url` (`redis://`, `rediss://`, `unix://`, `sentinel://` or `rediss+sentinel://`), or for one shard
    of it (`cluster://` or `rediss+cluster://`); nothing is opened before the first command.

    Args:
        timeout_s: bound on one reply, and on waiting for a free connection; every blocking command must ask for less.
        connect_timeout_s: bound on opening a connection.
        queue_class: holds the idle connections; one that blocks its greenlet alone, where the process is not patched.
        shard_tag: the hash tag that all keys of this client have; needed with a cluster, and of no effect without.

    Raises:
        ValueError: for a URL that cannot be read, or a cluster without a shard.
    """
    options: dict[str, Any] = {
        "timeout": timeout_s,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        "max_connections": max_connections,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "queue_class": queue_class,
    }
    # A frontend has hundreds of greenlets: the plain pool raises when all connections are in use.
    pools: Any = BlockingConnectionPool
    if (sentinels := sentinels_of(url)) is not None:
        return Redis.from_pool(pools(**options | sentinel.pool_options(sentinels)))
    if (nodes := cluster_of(url)) is not None:
        if not shard_tag:
            raise ValueError("a cluster has shards only; name the one that is meant")
        return cluster.ShardRedis.from_pool(pools(**options | cluster.pool_options(nodes, shard_tag)))
    return Redis.from_pool(pools.from_url(redis_py_url(url), **options))


def pack_command(command: tuple[Any, ...]) -> bytes:
    """A command as it is sent."""
    packed: bytes = (_packed and _packed(command)) or hiredis.pack_command(command)
    return packed


# The same for texts, bytes and numbers, in a fifth of the time; None where it was not compiled.
_packed: Callable[[tuple[Any, ...]], bytes | None] | None = hot_path.packed if hot_path is not None else None


# A wait at the server is over before the same wait here.
_SOONER_S = 0.005


class Script:
    """A Lua script and its SHA1."""

    __slots__ = ("_guarded", "sha", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self._guarded: Script | None = None

    @property
    def guarded(self) -> Script:
        """The same for a cluster: it gets one key more (`config.cluster`)."""
        if self._guarded is None:
            self._guarded = Script(guarded(self.source))
        return self._guarded


class Call:
    """A script with its keys and arguments, encoded once, for a call that is made again and again."""

    __slots__ = ("_given", "command", "packed", "script")

    def __init__(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> None:
        self._given = (keys, args)
        self.script = script
        self.command = ("EVALSHA", script.sha, len(keys), *keys, *args)
        self.packed = pack_command(self.command)

    def guard(self, absent: str) -> None:
        """Turn it into one for a cluster (`config.cluster`), if it is not one yet."""
        keys, args = self._given
        if keys[-1:] != (absent,):
            self.__init__(self.script.guarded, (*keys, absent), args)  # type: ignore[misc]


class Line:
    """One connection for one owner, for the hot path: no pool, no client in between.

    A redis-py client spends more time on a command (pool, retry policy, metrics, response callbacks) than the server
    spends on a script that moves a whole batch. It must not be used by two threads or greenlets at once.

    A command that fails on a connection that had been open before is sent once more over a new one: Redis closes
    connections when it restarts, and a demoted server refuses writes; the first caller after that should not get an
    error. So only commands that may be repeated are sent here; the head of each script says why it may be.
    """

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._connection: Any = None
        located = self._pool.connection_kwargs.get("located")
        # The key that a cluster's scripts get in addition.
        self._absent = absent_key(located.tag) if isinstance(located, Slot) else ""
        # Of what was started last: the calls, whether the connection had been open before, and why it could not be.
        self._started: Sequence[Call] = ()
        self._reused = False
        self._broken: RedisError | None = None

    def script(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script. Raises RedisError."""
        if self._absent:
            script, keys = script.guarded, (*keys, self._absent)
        command = ("EVALSHA", script.sha, len(keys), *keys, *args)
        return self._call(self._exchange, command, pack_command(command), script)

    def again(self, call: Call) -> Any:
        """Run a script with the same keys and arguments as before. Raises RedisError."""
        if self._absent:
            call.guard(self._absent)
        return self._call(self._exchange, call.command, call.packed, call.script)

    def command(self, *command: Any) -> Any:
        """Run a command. Raises RedisError."""
        return self._call(self._exchange, command, pack_command(command), None)

    def when_rung(self, bell: str, timeout_s: float, call: Call) -> Any:
        """Run a script as soon as the list `bell` has a token, which is taken, or without one after `timeout_s`.

        The script is sent along with the wait, and the server runs it when that ends: a trip less than a wait and then
        a call. Raises RedisError.
        """
        if self._absent:
            call.guard(self._absent)
        return self._call(self._exchange_when_rung, bell, timeout_s, call)

    def start(self, calls: Sequence[Call]) -> None:
        """Send several scripts at once; `replies` must follow. It does not raise if Redis is away: `replies` tells."""
        self._started, self._reused, self._broken = calls, self._connection is not None, None
        if self._absent:
            for call in calls:
                call.guard(self._absent)
        try:
            self._opened().send_packed_command((b"".join(call.packed for call in calls),), check_health=False)
        except RedisError as error:
            self.close()
            self._broken = error
        except BaseException:
            self.close()
            raise

    def replies(self, patience_s: float | None = None) -> list[Any]:
        """The replies to what was started last, a RedisError in the place of each that has none.

        What failed as `_call` would repeat it is repeated, one by one. `patience_s`: for the first reply; None: the
        client's timeout.
        """
        calls, broken = self._started, self._broken
        replies: list[Any] = []
        try:
            if broken is None and patience_s is not None and not self._is_readable(patience_s):
                raise RedisTimeoutError("no reply")
            while broken is None and len(replies) < len(calls):
                replies.append(self._reply())
        except RedisError as error:
            self.close()
            broken = error
        except BaseException:
            self.close()
            raise
        return self._repeated(calls, replies, broken)

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as error:
            # The replies behind it are still to be read.
            return error

    def _is_readable(self, patience_s: float) -> bool:
        readable = select.poll()
        readable.register(self._connection._sock, select.POLLIN)  # noqa: SLF001 - redis-py has no other way
        return bool(readable.poll(patience_s * 1000))

    def _repeated(self, calls: Sequence[Call], replies: list[Any], broken: RedisError | None) -> list[Any]:
        lost = (broken,) * (len(calls) - len(replies))
        if broken is not None and (not self._reused or not _is_worth_a_repeat(broken)):
            return [*replies, *lost]
        whole: list[Any] = []
        for call, reply in zip(calls, (*replies, *lost), strict=True):
            again = isinstance(reply, RedisError) and (
                isinstance(reply, NoScriptError) or (self._reused and _is_worth_a_repeat(reply))
            )
            whole.append(self._again_or_error(call) if again else reply)
        return whole

    def _again_or_error(self, call: Call) -> Any:
        try:
            return self.again(call)
        except RedisError as error:
            # The others would fail in the same way, each after a timeout.
            self._reused = False
            return error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _call(self, exchange: Callable[..., Any], *about: Any) -> Any:
        reused = self._connection is not None
        try:
            return exchange(*about)
        except RedisError as error:
            # After a timeout the reply may still arrive, and would answer the next command.
            self.close()
            if not reused or not _is_worth_a_repeat(error):
                raise
        except BaseException:
            # As above, of a killed greenlet.
            self.close()
            raise
        try:
            return exchange(*about)
        except BaseException:
            # As above.
            self.close()
            raise

    def _open(self) -> Any:
        return dedicated_connection(self._pool)

    def _opened(self) -> Any:
        if self._connection is not None and not self._connection.is_connected:
            # It was closed when a reply said that the server is another one now (`config.locator`).
            self.close()
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _exchange(self, command: tuple[Any, ...], packed: bytes, script: Script | None) -> Any:
        connection = self._opened()
        # redis-py's own `send_command` copies all arguments twice on the way to `pack_command`.
        connection.send_packed_command((packed,), check_health=False)
        try:
            return connection.read_response()
        except MovedError:
            raise
        except AskError as error:
            # Scripts wait until the slot has moved.
            if script is not None:
                raise
            return connection.ask_there(error, (packed,))
        except NoScriptError:
            assert script is not None
            return _loaded(connection, command, packed, script)

    def _exchange_when_rung(self, bell: str, timeout_s: float, call: Call) -> Any:
        connection = self._opened()
        wait = pack_command(("BLPOP", bell, max(timeout_s - _SOONER_S, 0.001)))
        connection.send_packed_command((wait + call.packed,), check_health=False)
        # A server without other work finds that a wait is over only in its cron, a tenth of a second later: any command
        # makes it look.
        if nudged := not self._is_readable(timeout_s):
            connection.send_command("PING")
        # After an error the connection is closed, and the other replies with it.
        connection.read_response()
        reply = self._reply()
        if nudged:
            connection.read_response()
        if isinstance(reply, NoScriptError):
            return _loaded(connection, call.command, call.packed, call.script)
        if isinstance(reply, ResponseError):
            raise reply
        return reply


def _loaded(connection: Any, command: tuple[Any, ...], packed: bytes, script: Script) -> Any:
    """Run a script that the server does not know yet."""
    connection.send_command("SCRIPT", "LOAD", script.source)
    connection.read_response()
    try:
        connection.send_packed_command((packed,), check_health=False)
        return connection.read_response()
    except NoScriptError:
        # The script was flushed in between (SCRIPT FLUSH, a failover): EVAL with the source cannot be.
        connection.send_command("EVAL", script.source, *command[2:])
        return connection.read_response()


def exchange(started: Sequence[tuple[Line, Sequence[Call]]], patience_s: float | None = None) -> list[list[Any]]:
    """Run the calls of each line, all lines at the same time; the replies as `Line.replies` returns them."""
    for line, calls in started:
        line.start(calls)
    return [line.replies(patience_s) for line, _ in started]


def _is_worth_a_repeat(error: RedisError) -> bool:
    # After a timeout the next one would follow.
    return not isinstance(error, RedisTimeoutError) and meaning_of(error) is Meaning.ANEW


def dedicated_connection(pool: Any) -> Any:
    """An open connection outside any pool, in RESP2: pushes arrive as plain replies."""
    connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 2})
    connection.connect()
    return connection


def run_id(connection: Any) -> str:
    """A text that tells one life of a server from another; empty where the user may not ask. Raises RedisError."""
    connection.send_command("INFO", "server")
    try:
        about = connection.read_response()
    except ResponseError:
        return ""
    found = re.search(rb"^run_id:(\w+)", about, re.MULTILINE)
    return found[1].decode() if found else ""


__all__ = [
    "Call",
    "Line",
    "RedisError",
    "Script",
    "connect",
    "dedicated_connection",
    "exchange",
    "run_id",
    "will_repeat",
]

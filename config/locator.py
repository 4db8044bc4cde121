"""Servers that tell where something is, and connections that are cut once it is elsewhere.

    sentinels, or nodes ◀── asked twice a second, while there are connections ── Locator ──▶ LocatedConnection
                                                                                  │    opens to the named address
                                                                                  └▶ cut, when another one is named

A connection to a server that has been replaced may stay open: the link between it and those who watch it is broken, or
it hangs. Whoever waits on it would wait for its whole timeout, and what it accepts is lost. So connections are cut from
outside, and their owners connect anew; a call costs nothing for it.
"""

from __future__ import annotations

import _socket
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from socket import SHUT_RDWR
from typing import Any, Protocol

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from config.redis_errors import Meaning, meaning_of

logger = logging.getLogger(__name__)

# How often the servers are asked while nothing goes wrong.
_WATCH_EVERY_S = 0.5
# An answer serves all who connect within this time.
_FRESH_S = 0.05
_TIMEOUT_S = 0.5
# A server that did not answer is left to the watch for this long.
_SILENT_S = 5.0

Address = tuple[str, int]


class LocatorError(RedisConnectionError):
    """No address can be named now, or a server is not what it is named for; the call may be repeated."""


class Located(Protocol):
    """One thing that is somewhere, and may move: the primary of a name, a slot of a cluster."""

    @property
    def named(self) -> Address | None:
        """The address that was named last."""

    @property
    def switches(self) -> int:
        """The number of times that it went to another address."""

    def address(self) -> Address:
        """The address now. Raises LocatorError."""

    def doubt(self) -> None:
        """The address did not answer: ask before it is used again."""

    def register(self, connection: LocatedConnection) -> None:
        """Cut this connection when another address is named."""


class Locator:
    """Those who are asked, and the connections that depend on their answers; shared by all connections of a process.
    Nothing here waits on another thread or greenlet, so any of them may call it.
    """

    def __init__(self, **options: Any) -> None:
        """`options` are those of a connection to whoever is asked; with `ssl_…` among them it uses TLS."""
        self.options = options
        self._asked_at = 0.0
        self._forget_process()
        _all.add(self)

    def _forget_process(self) -> None:
        """Forget what belongs to one process: after a fork it is the parent's."""
        self._idle: dict[Address, list[Any]] = {}
        self._silent: dict[Address, float] = {}
        self._connections: dict[int, weakref.ref[LocatedConnection]] = {}
        self._watching = False

    def ask(self, *, everyone: bool = False) -> object:
        """Ask; with `everyone` also those that did not answer lately. Raises LocatorError."""
        raise NotImplementedError

    def doubt(self) -> None:
        """An address did not answer: ask before one is used again."""
        self._asked_at = 0.0

    def register(self, connection: LocatedConnection) -> None:
        """Cut this connection when another address is named than the one it is connected to."""
        number = id(connection)
        self._connections[number] = weakref.ref(connection, lambda _: self._connections.pop(number, None))
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._watch, name="redis watch", daemon=True).start()

    @property
    def _is_fresh(self) -> bool:
        return time.monotonic() - self._asked_at < _FRESH_S

    def _is_silent(self, host: Address) -> bool:
        return time.monotonic() - self._silent.get(host, -_SILENT_S) < _SILENT_S

    def _heed(self, host: Address, *, answers: bool) -> None:
        """Note whether a server has answered."""
        if answers:
            self._silent.pop(host, None)
        else:
            self._silent[host] = time.monotonic()

    def _exchange(self, host: Address, *commands: Sequence[str]) -> list[Any]:
        """The replies of one server; the error for a command that it refuses for what it is. Raises RedisError,
        OSError.
        """
        idle = self._idle.setdefault(host, [])
        connection: Any
        try:
            connection = idle.pop()
        except IndexError:
            connection = self._open(host)
        try:
            for command in commands:
                connection.send_command(*command)
            replies = [_read(connection) for _ in commands]
        except BaseException:
            connection.disconnect()
            raise
        idle.append(connection)
        return replies

    def _open(self, host: Address) -> Any:
        tls = any(name.startswith("ssl_") for name in self.options)
        kind: Any = SSLConnection if tls else Connection
        connection = kind(
            host=host[0],
            port=host[1],
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **self.options,
        )
        connection.connect()
        return connection

    def _live_connections(self) -> list[LocatedConnection]:
        while True:
            # One that is collected meanwhile leaves the dictionary, and that may be during this very iteration.
            with contextlib.suppress(RuntimeError):
                return [found for each in list(self._connections.values()) if (found := each()) is not None]

    def _watch(self) -> None:
        while True:
            time.sleep(_WATCH_EVERY_S)
            if not self._connections:
                self._watching = False
                # One that was registered in between has started no other watch.
                if not self._connections:
                    return
                self._watching = True
            try:
                self.ask(everyone=True)
            except LocatorError:
                # Whoever wants to connect is told of it.
                continue
            except Exception:
                # Without it, nobody would leave a server that hangs.
                logger.exception("could not ask where Redis is; asking again")


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except RedisError as error:
        if meaning_of(error) is not Meaning.NEVER:
            raise
        return error


class LocatedConnection(Connection):
    """A connection to whatever address is named when it is opened."""

    def __init__(self, *, located: Located, **options: Any) -> None:
        self._located = located
        self.peer: Address | None = None
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def is_elsewhere(self) -> bool:
        """Return whether another address is named than the one it is connected to."""
        return self.peer != self._located.named

    def cut(self) -> None:
        """End it from any thread: whoever waits for a reply gets a connection error."""
        sock: Any = self._sock
        if sock is not None:
            # The system's own call: gevent's and TLS's are for the thread that uses the socket.
            with contextlib.suppress(OSError):
                _socket.socket.shutdown(getattr(sock, "_sock", sock), SHUT_RDWR)

    def _connect(self) -> Any:
        self.peer = self.host, self.port = self._located.address()
        try:
            return super()._connect()  # type: ignore[no-untyped-call]
        except OSError:
            self._located.doubt()
            raise

    def on_connect_check_health(self, check_health: bool = True) -> None:
        # A server that hangs keeps whoever connects waiting, too.
        self._located.register(self)
        super().on_connect_check_health(check_health=check_health)
        self._check()
        if self.is_elsewhere():
            raise LocatorError(f"{self.host}:{self.port} is not the primary any more")

    def _check(self) -> None:
        """Raise RedisError if the server is not what it is named for."""

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)
        except RedisError as error:
            # A read with a timeout of its own is how one waits for a message.
            if meaning_of(error) is Meaning.ANEW and not isinstance(error, RedisTimeoutError):
                self._located.doubt()
                self.disconnect()  # type: ignore[no-untyped-call]
            raise


def failovers_of(redis: Redis) -> int:
    """The number of times that this client was led to another server; always 0 for one that has a fixed address."""
    located: Located | None = redis.connection_pool.connection_kwargs.get("located")
    return located.switches if located is not None else 0


_all: weakref.WeakSet[Locator] = weakref.WeakSet()


def _forget_all() -> None:
    for locator in _all:
        locator._forget_process()  # noqa: SLF001 - the module's own


os.register_at_fork(after_in_child=_forget_all)

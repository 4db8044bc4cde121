"""The primary that Redis Sentinel names, and connections that go nowhere else.

    sentinels ◀── the primary's address, with the epoch of the failover that made it ── Primary ──▶ PrimaryConnection
        │                                                                             │   connects there; ROLE must be
        └──── asked again twice a second, while there are connections: ───────────────┘   `master`, or it is closed
              another address than before → every connection to the old one is cut

A connection to a primary that has been replaced may stay open: the link between it and the sentinels is broken, or it
hangs. Whoever waits on it would wait for its whole timeout, and what it accepts is lost. So connections are cut from
outside, and their owners connect anew; a call costs nothing for it.

Several sentinels are asked, since one that is cut off with the old primary goes on naming it. The answer of the latest
failover counts (`config-epoch`). An earlier one than has been seen before counts only when most of the sentinels
answer: then they have been set up anew.
"""

from __future__ import annotations

import _socket
import contextlib
import logging
import os
import threading
import time
import weakref
from dataclasses import replace
from functools import lru_cache
from socket import SHUT_RDWR
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from config.redis_errors import Meaning, meaning_of
from config.redis_url import Sentinels

logger = logging.getLogger(__name__)

# How often the sentinels are asked while nothing goes wrong.
_WATCH_EVERY_S = 0.5
# An answer serves all who connect within this time.
_FRESH_S = 0.05
_SENTINEL_TIMEOUT_S = 0.5
# A sentinel that did not answer is left to the watch for this long.
_SILENT_S = 5.0

Address = tuple[str, int]


class SentinelError(RedisConnectionError):
    """No primary can be named now, or a server is not the one that is named; the call may be repeated."""


class Primary:
    """The primary of one name, as its sentinels tell; shared by all connections of a process. Nothing here waits on
    another thread or greenlet, so any of them may call it.
    """

    def __init__(self, sentinels: Sentinels) -> None:
        self._sentinels = sentinels
        self._address: Address | None = None
        self._epoch = -1
        self._asked_at = 0.0
        # How many times another server has become the primary.
        self.switches = 0
        self._forget_process()

    def _forget_process(self) -> None:
        """Forget what belongs to one process: after a fork it is the parent's."""
        self._idle: dict[Address, list[Any]] = {each: [] for each in self._sentinels.hosts}
        self._silent: dict[Address, float] = {}
        self._connections: dict[int, weakref.ref[PrimaryConnection]] = {}
        self._watching = False

    def address(self) -> Address:
        """The primary's address. Raises SentinelError."""
        if self._address is not None and time.monotonic() - self._asked_at < _FRESH_S:
            return self._address
        return self.ask()

    @property
    def named(self) -> Address | None:
        """The address that was named last."""
        return self._address

    def doubt(self) -> None:
        """The address did not answer: ask the sentinels before it is used again."""
        self._asked_at = 0.0

    def ask(self, *, everyone: bool = False) -> Address:
        """Ask the sentinels; with `everyone` also those that did not answer lately. Raises SentinelError."""
        now = time.monotonic()
        hosts = self._sentinels.hosts
        lively = [each for each in hosts if now - self._silent.get(each, -_SILENT_S) >= _SILENT_S]
        found: list[tuple[int, Address]] = []
        why: Exception | None = None
        for host in hosts if everyone or not lively else lively:
            try:
                named = self._ask_one(host)
            except (RedisError, OSError, ValueError) as error:
                self._silent[host] = time.monotonic()
                why = error
                continue
            self._silent.pop(host, None)
            if named is not None:
                found.append(named)
        if not found:
            name = self._sentinels.name
            raise SentinelError(f"no sentinel answers: {why}" if why else f"no sentinel knows a primary named {name}")
        epoch, address = max(found, key=lambda each: each[0])
        if epoch < self._epoch and 2 * len(found) <= len(hosts):
            raise SentinelError("only sentinels that have not heard of the last failover answer")
        self._learn(epoch, address)
        return address

    def register(self, connection: PrimaryConnection) -> None:
        """Cut this connection when another server becomes the primary."""
        number = id(connection)
        self._connections[number] = weakref.ref(connection, lambda _: self._connections.pop(number, None))
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._watch, name="sentinel watch", daemon=True).start()

    def _ask_one(self, host: Address) -> tuple[int, Address] | None:
        idle = self._idle[host]
        connection: Any
        try:
            connection = idle.pop()
        except IndexError:
            connection = self._open(host)
        try:
            name = self._sentinels.name
            # The first knows the promoted replica earlier, the second has the epoch.
            connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
            connection.send_command("SENTINEL", "MASTER", name)
            address = connection.read_response()
            try:
                pairs = connection.read_response()
            except RedisError as error:
                if meaning_of(error) is not Meaning.NEVER:
                    raise
                # It does not know the name, or may not tell more than the address.
                pairs = []
        except BaseException:
            connection.disconnect()
            raise
        idle.append(connection)
        if address is None:
            return None
        about = dict(zip(pairs[::2], pairs[1::2], strict=False))
        return int(about.get(b"config-epoch", 0)), (address[0].decode(), int(address[1]))

    def _open(self, host: Address) -> Any:
        sentinels = self._sentinels
        kind: Any = SSLConnection if sentinels.tls else Connection
        connection = kind(
            host=host[0],
            port=host[1],
            username=sentinels.sentinel_username or None,
            password=sentinels.sentinel_password or None,
            socket_timeout=_SENTINEL_TIMEOUT_S,
            socket_connect_timeout=_SENTINEL_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **dict(sentinels.tls),
        )
        connection.connect()
        return connection

    def _learn(self, epoch: int, address: Address) -> None:
        self._epoch, self._asked_at = epoch, time.monotonic()
        if address == self._address:
            return
        self.switches += self._address is not None
        self._address = address
        for each in list(self._connections.values()):
            connection = each()
            if connection is not None and connection.peer != address:
                connection.cut()

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
            except SentinelError:
                # Whoever wants to connect is told of it.
                continue
            except Exception:
                # Without it, nobody would leave a primary that hangs.
                logger.exception("could not ask the sentinels for the primary; asking again")


class PrimaryConnection(Connection):
    """A connection to whatever server is the primary when it is opened."""

    def __init__(self, *, primary: Primary, **options: Any) -> None:
        self._primary = primary
        self.peer: Address | None = None
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def cut(self) -> None:
        """End it from any thread: whoever waits for a reply gets a connection error."""
        sock: Any = self._sock
        if sock is not None:
            # The system's own call: gevent's and TLS's are for the thread that uses the socket.
            with contextlib.suppress(OSError):
                _socket.socket.shutdown(getattr(sock, "_sock", sock), SHUT_RDWR)

    def _connect(self) -> Any:
        self.peer = self.host, self.port = self._primary.address()
        try:
            return super()._connect()  # type: ignore[no-untyped-call]
        except OSError:
            self._primary.doubt()
            raise

    def on_connect_check_health(self, check_health: bool = True) -> None:
        super().on_connect_check_health(check_health=check_health)
        try:
            self.send_command("ROLE")  # type: ignore[no-untyped-call]
            role = self.read_response()[0]
        except NoPermissionError:
            # Then its own errors must tell.
            role = b"master"
        if role not in {b"master", "master"}:
            self._primary.doubt()
            raise SentinelError(f"{self.host}:{self.port} is not a primary yet")
        self._primary.register(self)
        if self.peer != self._primary.named:
            raise SentinelError(f"{self.host}:{self.port} is not the primary any more")

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)
        except RedisError as error:
            # A read with a timeout of its own is how one waits for a message.
            if meaning_of(error) is Meaning.ANEW and not isinstance(error, RedisTimeoutError):
                self._primary.doubt()
                self.disconnect()  # type: ignore[no-untyped-call]
            raise


class PrimarySSLConnection(PrimaryConnection, SSLConnection):
    """The same over TLS."""


def primary_of(sentinels: Sentinels) -> Primary:
    """The primary of a name: one for each process, whatever uses it."""
    return _primary_of(replace(sentinels, db=0, username="", password=""))


@lru_cache(maxsize=16)
def _primary_of(sentinels: Sentinels) -> Primary:
    primary = Primary(sentinels)
    _all.add(primary)
    return primary


def connection_class(sentinels: Sentinels) -> type[PrimaryConnection]:
    return PrimarySSLConnection if sentinels.tls else PrimaryConnection


def pool_options(sentinels: Sentinels) -> dict[str, Any]:
    """The arguments of a redis-py pool whose connections go to the primary."""
    return {
        "connection_class": connection_class(sentinels),
        "primary": primary_of(sentinels),
        "db": sentinels.db,
        "username": sentinels.username or None,
        "password": sentinels.password or None,
        **dict(sentinels.tls),
    }


def failovers_of(redis: Redis) -> int:
    """The number of times that another server has become the primary of this client; always 0 without Sentinel."""
    primary: Primary | None = redis.connection_pool.connection_kwargs.get("primary")
    return primary.switches if primary is not None else 0


_all: weakref.WeakSet[Primary] = weakref.WeakSet()


def _forget_all() -> None:
    for primary in _all:
        primary._forget_process()  # noqa: SLF001 - the module's own


os.register_at_fork(after_in_child=_forget_all)

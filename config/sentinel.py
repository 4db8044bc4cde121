"""The primary that Redis Sentinel names, and connections that go nowhere else.

    sentinels ◀── the primary's address, with the epoch of the failover that made it ── Primary ──▶ PrimaryConnection
                                                                                         connects there; ROLE must be
                                                                                         `master`, or it is closed

Several sentinels are asked, since one that is cut off with the old primary goes on naming it. The answer of the latest
failover counts (`config-epoch`). An earlier one than has been seen before counts only when most of the sentinels
answer: then they have been set up anew.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache
from typing import Any

from redis.connection import SSLConnection
from redis.exceptions import NoPermissionError, RedisError

from config.locator import Address, LocatedConnection, Locator, LocatorError
from config.redis_url import Sentinels


class SentinelError(LocatorError):
    """No primary can be named now, or a server is not the one that is named; the call may be repeated."""


class Primary(Locator):
    """The primary of one name, as its sentinels tell."""

    def __init__(self, sentinels: Sentinels) -> None:
        self._sentinels = sentinels
        self._address: Address | None = None
        self._epoch = -1
        self.switches = 0
        super().__init__(
            username=sentinels.sentinel_username or None,
            password=sentinels.sentinel_password or None,
            **dict(sentinels.tls),
        )

    def address(self) -> Address:
        """The primary's address. Raises SentinelError."""
        return self._address if self._address is not None and self._is_fresh else self.ask()

    @property
    def named(self) -> Address | None:
        return self._address

    def ask(self, *, everyone: bool = False) -> Address:
        hosts = self._sentinels.hosts
        lively = [each for each in hosts if not self._is_silent(each)]
        found: list[tuple[int, Address]] = []
        why: Exception | None = None
        for host in hosts if everyone or not lively else lively:
            try:
                named = self._ask_one(host)
            except (RedisError, OSError, ValueError) as error:
                self._heed(host, answers=False)
                why = error
                continue
            self._heed(host, answers=True)
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

    def _ask_one(self, host: Address) -> tuple[int, Address] | None:
        name = self._sentinels.name
        # The first knows the promoted replica earlier, the second has the epoch.
        address, pairs = self._exchange(
            host, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name), ("SENTINEL", "MASTER", name)
        )
        if isinstance(address, RedisError):
            raise address
        if address is None:
            return None
        # It may not know the name any more, or may not tell more than the address.
        about = {} if isinstance(pairs, RedisError) else dict(zip(pairs[::2], pairs[1::2], strict=False))
        return int(about.get(b"config-epoch", 0)), (address[0].decode(), int(address[1]))

    def _learn(self, epoch: int, address: Address) -> None:
        self._epoch, self._asked_at = epoch, time.monotonic()
        if address == self._address:
            return
        self.switches += self._address is not None
        self._address = address
        for connection in self._live_connections():
            if connection.peer != address:
                connection.cut()


class PrimaryConnection(LocatedConnection):
    """A connection to whatever server is the primary when it is opened."""

    def _check(self) -> None:
        try:
            self.send_command("ROLE")  # type: ignore[no-untyped-call]
            role = self.read_response()[0]
        except NoPermissionError:
            # Then its own errors must tell.
            return
        if role not in {b"master", "master"}:
            self._located.doubt()
            raise SentinelError(f"{self.host}:{self.port} is not a primary yet")


class PrimarySSLConnection(PrimaryConnection, SSLConnection):
    """The same over TLS."""


def primary_of(sentinels: Sentinels) -> Primary:
    """The primary of a name: one for each process, whatever uses it."""
    return _primary_of(replace(sentinels, db=0, username="", password=""))


_primary_of = lru_cache(maxsize=16)(Primary)


def pool_options(sentinels: Sentinels) -> dict[str, Any]:
    """The arguments of a redis-py pool whose connections go to the primary."""
    return {
        "connection_class": PrimarySSLConnection if sentinels.tls else PrimaryConnection,
        "located": primary_of(sentinels),
        "db": sentinels.db,
        "username": sentinels.username or None,
        "password": sentinels.password or None,
        **dict(sentinels.tls),
    }

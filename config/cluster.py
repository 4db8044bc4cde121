"""The nodes of a Redis Cluster, and connections to whichever has the slot of a shard.

    nodes ◀── slots, their primaries, config epochs ── SlotMap ── address of a slot ──▶ ShardConnection: an EXISTS tells
                                                                                      whether the node has the slot
    MOVED     the map is asked for again, that node first; this connection is closed, and whoever has it connects anew
    ASK       the slot is being moved key by key, and this key is gone already: the command is sent once, with ASKING,
              to the node that gets it
    TRYAGAIN  likewise, but of several keys; the caller pauses and repeats

All keys of a shard are in one slot, so that one connection needs one node: there is no routing by command.

Several nodes are asked, since one that is cut off goes on naming itself or the old primary. For each slot the claim
with the highest config epoch counts, which is the cluster's own rule. A lower one than has been seen before counts only
when most of the nodes say so: then the cluster has been set up anew.

While a slot is moved key by key, a node refuses a command that has several keys one of which is missing, before it
runs. A script would run if its keys were all there, and then fail in its midst at a key that it makes up. So each
script is sent with one key more, which never exists (`absent_key`): scripts of that shard wait until it has moved.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.commands.core import Script as RegisteredScript
from redis.connection import Connection, SSLConnection
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, NoPermissionError, RedisError, TryAgainError
from redis.retry import Retry

from config.locator import Address, LocatedConnection, Locator, LocatorError
from config.redis_url import Cluster

# Nodes that are asked at once.
_ENOUGH = 3
# What a node has said counts for this long, unless it says something else.
_VALID_S = 10.0
# Plain calls are repeated for about a second while a slot moves.
_REPEATS = 12
_REPEAT_AFTER_S = 0.01
_MAX_REPEAT_AFTER_S = 0.1
# What a node writes for the name of another one that it does not know.
_UNKNOWN = b"?"


class ClusterError(LocatorError):
    """No node can be named that has a slot, or the node does not have it; the call may be repeated."""


class Owner(NamedTuple):
    """The primary of a range of slots, as one node tells."""

    first: int
    last: int
    epoch: int
    address: Address
    # Most of the primaries find that it does not answer.
    is_down: bool = False
    replicas: tuple[Address, ...] = ()


class SlotMap(Locator):
    """The primary of each slot, as the nodes tell."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._owners: dict[int, Owner] = {}
        self._slots: set[int] = set()
        self._switches: dict[int, int] = {}
        # By node: the time, and its whole map.
        self._said: dict[bytes, tuple[float, list[Owner]]] = {}
        self._nodes: tuple[Address, ...] = ()
        self._turn = 0
        super().__init__(username=cluster.username or None, password=cluster.password or None, **dict(cluster.tls))

    def named(self, slot: int) -> Address | None:
        """The address that was named last for a slot; None too when nobody serves it."""
        owner = self._owners.get(slot)
        return owner.address if owner is not None else None

    def switches(self, slot: int) -> int:
        """The number of times that another node has got a slot."""
        return self._switches.get(slot, 0)

    def address(self, slot: int) -> Address:
        """The address of the primary that has a slot. Raises ClusterError."""
        self._slots.add(slot)
        if slot not in self._owners or not self._is_fresh:
            self.ask()
        owner = self._owners.get(slot)
        if owner is None:
            raise ClusterError(f"no node of the cluster has slot {slot}")
        if owner.is_down:
            self._require_answer(owner.address)
        return owner.address

    def owners(self) -> list[Owner]:
        """The primaries of all slots that are served, as whoever was asked last tells. Raises ClusterError."""
        self.ask()
        return max(list(self._said.values()), key=lambda each: each[0])[1]

    def moved(self, slot: int, address: Address) -> None:
        """A node says that another one has a slot: ask that one first."""
        self.doubt()
        self._nodes = (address, *(each for each in self._nodes if each != address))
        self._turn = 0

    def ask(self, *, everyone: bool = False) -> None:
        answers = 0
        why: Exception | None = None
        for host in self._in_turn(everyone=everyone):
            try:
                said_by, owners = self._ask_one(host)
            except (RedisError, OSError, ValueError, LookupError) as error:
                self._heed(host, answers=False)
                why = error
                continue
            self._heed(host, answers=True)
            self._said[said_by] = (time.monotonic(), owners)
            answers += 1
            if answers == _ENOUGH:
                break
        if not answers:
            raise ClusterError(f"no node of the cluster answers: {why}")
        self._asked_at = time.monotonic()
        self._learn()

    def _in_turn(self, *, everyone: bool) -> list[Address]:
        """The nodes to ask, each time another one first; those of the URL when no other answers."""
        start = self._turn % len(self._nodes) if self._nodes else 0
        known = [*self._nodes[start:], *self._nodes[:start]]
        self._turn += 1
        lively = [each for each in known if not self._is_silent(each)]
        silent = [each for each in known if self._is_silent(each)]
        seeds = [each for each in self._cluster.hosts if each not in known]
        if everyone:
            # One that is silent costs its whole timeout.
            return [*lively[:_ENOUGH], *silent[:1], *lively[_ENOUGH:], *seeds]
        return [*lively, *seeds] or list(known)

    def _require_answer(self, address: Address) -> None:
        """Raise ClusterError if this node, which the others find down, does not answer us either: to connect to one
        that hangs would take longer.
        """
        try:
            if self._is_silent(address):
                raise TimeoutError("it did not answer lately")
            self._exchange(address, ("PING",))
        except (RedisError, OSError) as error:
            self._heed(address, answers=False)
            host, port = address
            raise ClusterError(f"{host}:{port} is down, and no replica has taken over: {error}") from error

    def _ask_one(self, host: Address) -> tuple[bytes, list[Owner]]:
        # The first has the addresses as they are announced to clients, the second the config epochs.
        slots, nodes = self._exchange(host, ("CLUSTER", "SLOTS"), ("CLUSTER", "NODES"))
        if isinstance(slots, RedisError):
            raise slots
        epochs: dict[bytes, int] = {}
        down: set[bytes] = set()
        said_by = f"{host[0]}:{host[1]}".encode()
        # Without the right to ask for it, whatever was said last counts.
        lines: list[bytes] = [] if isinstance(nodes, RedisError) else nodes.splitlines()
        for number, _, flags, _, _, _, epoch, *_ in map(bytes.split, lines):
            epochs[number] = int(epoch)
            named = flags.split(b",")
            if b"fail" in named:
                down.add(number)
            if b"myself" in named:
                said_by = number
        owners: list[Owner] = []
        addresses: dict[Address, None] = {}
        for first, last, *servers in slots:
            found = [_address(each, host) for each in servers]
            addresses |= dict.fromkeys(each for each in found if each is not None)
            if found and found[0] is not None:
                number, replicas = servers[0][2], tuple(each for each in found[1:] if each is not None)
                owners.append(Owner(first, last, epochs.get(number, 0), found[0], number in down, replicas))
        if addresses:
            self._nodes = tuple(addresses)
        return said_by, owners

    def _learn(self) -> None:
        now = time.monotonic()
        # Copies, each made in one step: other threads ask, too.
        self._said = {number: each for number, each in list(self._said.items()) if now - each[0] < _VALID_S}
        said = sorted(self._said.values(), key=lambda each: each[0])
        most = 2 * len(said) > len(self._nodes)
        for slot in tuple(self._slots):
            claims = [owner for _, owners in said for owner in owners if owner.first <= slot <= owner.last]
            known = self._owners.get(slot)
            if not claims:
                if most:
                    self._owners.pop(slot, None)
                continue
            # Of equal ones the latest, which knows whether it is down.
            best = max(reversed(claims), key=lambda each: each.epoch)
            if known is None or best.epoch >= known.epoch or most:
                self._owners[slot] = best
                self._switches[slot] = self.switches(slot) + (known is not None and known.address != best.address)
                if best.is_down and not (known is not None and known.is_down):
                    self._cut(best.address)
        for connection in self._live_connections():
            if connection.is_elsewhere():
                connection.cut()

    def _cut(self, address: Address) -> None:
        """End what waits for a node that hangs; whoever connects anew is told that it is down."""
        for connection in self._live_connections():
            if connection.peer == address:
                connection.cut()


def _address(server: Sequence[Any], teller: Address) -> Address | None:
    """A node's address as CLUSTER SLOTS has it; None if the teller does not know it."""
    host, port = server[0], int(server[1])
    if host == _UNKNOWN:
        return None
    # Without one it is that of whoever tells.
    return (host.decode() if host else teller[0]), port


class Slot:
    """The slot of one shard, as something that is somewhere and may move (`config.locator.Located`)."""

    def __init__(self, slots: SlotMap, tag: str) -> None:
        self.slots = slots
        self.tag = tag
        self.number: int = key_slot(tag.encode())

    @property
    def named(self) -> Address | None:
        return self.slots.named(self.number)

    @property
    def switches(self) -> int:
        return self.slots.switches(self.number)

    def address(self) -> Address:
        return self.slots.address(self.number)

    def doubt(self) -> None:
        self.slots.doubt()

    def register(self, connection: LocatedConnection) -> None:
        self.slots.register(connection)


class ShardConnection(LocatedConnection):
    """A connection to whatever node has the slot of a shard when it is opened.

    A reply of ASK to a single command of a client is followed; to one of several, or while a message is waited for (a
    read with a timeout of its own), it is an error.
    """

    _located: Slot

    def __init__(self, *, located: Slot, **options: Any) -> None:
        self._sent: Any = None
        super().__init__(located=located, **options)

    def send_command(self, *args: Any, **options: Any) -> None:
        packed = self.pack_command(*args)  # type: ignore[no-untyped-call]
        self.send_packed_command(packed, check_health=options.get("check_health", True))
        self._sent = packed

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self._sent = None
        super().send_packed_command(command, check_health=check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **options: Any) -> Any:
        sent, self._sent = self._sent, None
        try:
            return super().read_response(*args, **options)
        except MovedError as error:
            self._located.slots.moved(self._located.number, self._meant(error))
            raise
        except AskError as error:
            if sent is None or "timeout" in options:
                raise
            return self.ask_there(error, sent, *args, **options)

    def _check(self) -> None:
        self.send_command("EXISTS", absent_key(self._located.tag))
        self._sent = None
        try:
            self.read_response()
        except MovedError:
            raise
        except (AskError, NoPermissionError):
            # It has the slot still, while that is being moved; or its own errors must tell.
            return

    def _meant(self, error: AskError) -> Address:
        host, port = error.node_addr
        return (host or self.host), port

    def ask_there(self, error: AskError, sent: Any, *args: Any, **options: Any) -> Any:
        """The reply to one packed command by the node that gets the slot. Raises RedisError."""
        address = self._meant(error)
        tls = {name: value for name, value in self._located.slots.options.items() if name.startswith("ssl_")}
        kind: Any = SSLConnection if tls else Connection
        there = kind(
            host=address[0],
            port=address[1],
            username=self.username,
            password=self.password,
            socket_timeout=self.socket_timeout,
            socket_connect_timeout=self.socket_connect_timeout,
            protocol=self.protocol,
            retry=Retry(ExponentialBackoff(), 0),
            **tls,
        )
        try:
            there.send_command("ASKING")
            there.read_response()
            there.send_packed_command(sent, check_health=False)
            return there.read_response(*args, **options)
        finally:
            there.disconnect()


class ShardSSLConnection(ShardConnection, SSLConnection):
    """The same over TLS."""


class ShardRedis(Redis):
    """A client of one shard. Its scripts have one key more, the one that never exists."""

    def register_script(self, script: Any) -> RegisteredScript:
        tag = self.connection_pool.connection_kwargs["located"].tag
        return _GuardedScript(self, guarded(script), absent_key(tag))


class _GuardedScript(RegisteredScript):
    def __init__(self, client: Redis, text: str, absent: str) -> None:
        super().__init__(client, text)
        self._absent = absent

    def __call__(self, keys: Any = (), args: Any = (), client: Any = None) -> Any:
        return super().__call__([*keys, self._absent], args, client)


class _RepeatRefused(Retry):
    """Repeats a call that a node has refused because its slot moves, and nothing else: it has not run. Of several
    commands that were sent at once, others may have.
    """

    def call_with_retry(self, do: Any, fail: Any, is_retryable: Any = None, with_failure_count: bool = False) -> Any:
        return super().call_with_retry(do, fail, _was_alone, with_failure_count)


def _was_alone(error: Exception) -> bool:
    # `redis.client.Pipeline.annotate_exception`.
    return not str(error).startswith("Command # ")


def absent_key(tag: str) -> str:
    """A key of a shard that nobody writes."""
    return f"bunch:absent{tag}"


def guarded(text: str) -> str:
    """A script that gets one key more than it knows of."""
    return f"KEYS[#KEYS] = nil {text}"


@lru_cache(maxsize=16)
def slots_of(cluster: Cluster) -> SlotMap:
    """The slots of a cluster: one map for each process, whatever uses it."""
    return SlotMap(cluster)


def pool_options(cluster: Cluster, tag: str) -> dict[str, Any]:
    """The arguments of a redis-py pool whose connections go to the node that has a shard's slot."""
    backoff = ExponentialBackoff(cap=_MAX_REPEAT_AFTER_S, base=_REPEAT_AFTER_S)
    return {
        "connection_class": ShardSSLConnection if cluster.tls else ShardConnection,
        "located": Slot(slots_of(cluster), tag),
        "username": cluster.username or None,
        "password": cluster.password or None,
        "retry": _RepeatRefused(backoff, _REPEATS, (MovedError, TryAgainError)),
        **dict(cluster.tls),
    }

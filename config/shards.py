"""The places of requests: shards, each with the Redis that has it, and the home of everything else.

    BUNCH_SHARDS=1    home: no tag, all of it                                     one Redis, or one with Sentinel
    BUNCH_SHARDS=16   {s0} … {s15}: queues, leases, results, quotas of requests   the same Redis, or a cluster's nodes
                      home: no tag: fleet, metrics, ledger, keys, and the         the same Redis; with a cluster that of
                      queues of plain Celery clients                              BUNCH_BROKER_URL

A shard is a hash tag, and thus one slot of a cluster: the cluster places it, moves it, replicates it and fails it over.
A shard's client goes to whatever node has that slot, so it needs no map of any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2s
from typing import Any

from redis import Redis

from config.keys import Shard
from config.redis import connect
from config.schema import Settings


@dataclass(frozen=True, slots=True)
class Place:
    """One shard and the Redis that has it. `number` is None for the home."""

    keys: Shard
    redis: Redis
    number: int | None = None

    @property
    def name(self) -> str:
        """The name shown to people: `s3`, or `home`."""
        return "home" if self.number is None else f"s{self.number}"


@dataclass(frozen=True, slots=True)
class Places:
    """All places of one process. `shards` has those that new requests go to: only the home, if there is one shard."""

    home: Place
    shards: tuple[Place, ...]

    @property
    def are_many(self) -> bool:
        return self.shards[0] is not self.home

    def __iter__(self) -> Iterator[Place]:
        """Every place that a request may be in: with several shards the home too, for plain Celery clients."""
        yield from self.shards
        if self.are_many:
            yield self.home

    def numbered(self, number: int | None) -> Place:
        """The shard of that number; the home for None, or for a shard that there is not."""
        return self.home if number is None or number >= len(self.shards) or not self.are_many else self.shards[number]

    def for_owner(self, owner: str) -> Place:
        """The shard of an owner: all of one owner's requests are in one, so that quotas, fairness between owners'
        keys, idempotency and cached answers stay exact.
        """
        return self.shards[_rendezvous(owner, len(self.shards))] if self.are_many else self.home

    def by_server(self) -> list[list[Place]]:
        """The places, grouped by client: one blocking call can wait for all of a group."""
        groups: dict[int, list[Place]] = {}
        for place in self:
            groups.setdefault(id(place.redis), []).append(place)
        return list(groups.values())


def open_places(settings: Settings, redis: Redis | None = None, **options: Any) -> Places:
    """The places that the settings name; nothing is opened before the first command.

    Args:
        redis: the client of the home, if there is one already.
        options: those of `config.redis.connect`.
    """
    home = Place(Shard(), redis or connect(settings.home_url, **options))
    if settings.shard_count == 1 and not settings.is_clustered:
        return Places(home, (home,))
    tags = [f"{{s{number}}}" for number in range(settings.shard_count)]
    if settings.is_clustered:
        clients = [connect(settings.redis_url, shard_tag=tag, **options) for tag in tags]
    else:
        clients = [home.redis] * len(tags)
    return Places(home, tuple(map(Place, map(Shard, tags), clients, range(len(tags)))))


def only_home(redis: Redis) -> Places:
    """One place, for one Redis with one shard."""
    home = Place(Shard(), redis)
    return Places(home, (home,))


@lru_cache(maxsize=4096)
def _rendezvous(name: str, count: int) -> int:
    """The number with the highest hash for this name (Thaler and Ravishankar, 1998): with one shard more, only the
    names that it gets move.
    """
    return max(range(count), key=lambda number: blake2s(f"{number}\0{name}".encode(), digest_size=8).digest())

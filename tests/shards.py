"""The shards that the tests run with: one by default, else several on each server that a test starts, or on a cluster.

    TEST_SHARDS=4 pytest tests/integration       (`make shards`)    on the test's server
    TEST_CLUSTER=1 pytest tests/integration      (`make cluster`)   on three primaries beside it, which is their home

It is read here alone. What a test starts gets its shards by `inherited_environment` and `redis_environment`, what it
makes in its own process by `redis_settings`, `places_of` and `store_of`.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from redis import Redis

from batching.claim.place_lines import PlaceLines
from batching.claim.sharded_store import make_store
from batching.claim.store import BatchStore
from config.settings import Settings
from config.shards import Places, open_places
from config.tiers import Tier
from tests.clusters import Clustered
from tests.tagged import TaggedRedis, nodes_of
from tests.valkey import PrivateValkey, port_of

ON_CLUSTER = os.environ.get("TEST_CLUSTER", "") == "1"
SHARDS = int(os.environ.get("TEST_SHARDS", "4" if ON_CLUSTER else "1"))
# The clusters beside servers by the URLs of those.
_beside: dict[str, str] = {}
_starting = threading.Lock()


def on_one_server(why: str) -> pytest.MarkDecorator:
    """Mark a test that cannot be tried on a cluster."""
    return pytest.mark.skipif(ON_CLUSTER, reason=f"not on a cluster: {why}")


def inherited_environment() -> dict[str, str]:
    """The environment for a process that a test starts: without the developer's own settings, but for
    `BUNCH_NATIVE=off`, with which the tests run too.
    """
    kept = {"BUNCH_NATIVE"}
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("BUNCH_") or key in kept}
    return inherited | ({"BUNCH_SHARDS": str(SHARDS)} if SHARDS > 1 else {})


def redis_settings(url: str) -> dict[str, Any]:
    """The settings for a server of the tests, as keywords."""
    if ON_CLUSTER:
        return {"redis_url": cluster_beside(url), "broker_url": url, "shards": SHARDS}
    return {"redis_url": url, "shards": SHARDS}


def redis_environment(url: str) -> dict[str, str]:
    """The same for a process."""
    return {f"BUNCH_{name.upper()}": str(value) for name, value in redis_settings(url).items()}


def places_of(redis: Redis, count: int = SHARDS) -> Places:
    """The places of requests: all on the server of `redis`, or the shards on its cluster."""
    if not ON_CLUSTER or count == 1:
        return open_places(Settings(shards=count), redis)
    options = redis.connection_pool.connection_kwargs
    home = Redis(connection_pool=redis.connection_pool)
    settings = Settings(**redis_settings(_url(redis)) | {"shards": count})
    return open_places(settings, home, timeout_s=options["socket_timeout"])


def everywhere(redis: Redis) -> Redis:
    """A client of a server and of the cluster beside it, if the tests have one."""
    if not ON_CLUSTER:
        return redis
    # The cluster is started here, and not in the middle of a test whose workers have to beat.
    return TaggedRedis(redis, places_of(redis), nodes_of(cluster_beside(_url(redis))))


def store_of(redis: Redis, worker_id: str) -> BatchStore:
    """A worker's store over all places of the server of `redis`."""
    return make_store(Settings(shards=SHARDS), PlaceLines(places_of(redis)), worker_id)


def depth_of(redis: Redis, model: str, tier: Tier = Tier.PAID) -> int:
    """The number of requests in a tier queue, in all shards."""
    return sum([place.redis.llen(place.keys.queue(model, tier)) for place in places_of(redis)])


def note_load(redis: Redis, model: str) -> None:
    """As a worker does that has loaded a model, in all shards."""
    for place in places_of(redis):
        place.redis.incr(place.keys.edition(model))


def servers_of(redis: Redis) -> list[Redis]:
    """The client of each server that a client of `everywhere` reaches."""
    return redis.servers if isinstance(redis, TaggedRedis) else [redis]


def flush(redis: Redis) -> None:
    """Empty a server of the tests, and the cluster beside it if that was started."""
    redis.flushdb()
    server = PrivateValkey.running.get(port_of(_url(redis)))
    if server is not None and server.beside is not None:
        server.beside.flush()


def cluster_beside(url: str, *, replicas: bool = False) -> str:
    """The URL of the cluster beside a server; it is started when it is first needed, and lives as long."""
    with _starting:
        server = PrivateValkey.running.get(port_of(url))
        # Another server may have had that port before.
        if server is not None and server.beside is None:
            beside = Clustered(*server.arguments, replicas=replicas).start()
            server.beside = beside
            _beside[url] = beside.url
        return _beside[url]


def inherit(url: str, cluster: str) -> None:
    """Tell a process of a server and a cluster that its parent has started."""
    _beside[url] = cluster


def _url(redis: Redis) -> str:
    return f"redis://127.0.0.1:{redis.connection_pool.connection_kwargs['port']}/0"

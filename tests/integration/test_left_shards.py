"""A `BUNCH_SHARDS` that became smaller: what was left in the other shards is said, and where."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest
from redis import Redis

from batching.claim.registry import WorkerRegistry
from batching.claim.store import RedisBatchStore
from cli.run.check_servers import server_problems, server_warnings
from config.keys import Shard
from config.redis import connect
from config.settings import ModelSettings, Settings
from config.tiers import Tier
from tasks.fleet.left_shards import Left, left_shards
from tasks.ops.presence_step import PresenceStep
from tasks.protocol.ids import new_id
from tests.clusters import Clustered
from tests.fakes.messages import our_message
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

MODEL = "m"
MODELS = {MODEL: ModelSettings(name=MODEL, source="workers.models.echo:Echo")}
SHARD = Shard("{s3}")


@pytest.fixture
def redis(valkey: PrivateValkey) -> Iterator[Redis]:
    """The one server, which has the shards here also where those of other tests are on a cluster."""
    with valkey.client() as client:
        client.flushdb()
        yield client


def settings_of(url: str, shards: int, **more: object) -> Settings:
    return Settings(models=MODELS, default_model=MODEL, redis_url=url, shards=shards, **more)  # type: ignore[arg-type]


def put(redis: Redis) -> None:
    redis.lpush(SHARD.queue(MODEL, Tier.FREE), our_message(new_id(), b"1", tier=Tier.FREE))


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_what_waits_in_a_shard_that_went_is_a_problem(redis: Redis, valkey: PrivateValkey, shards: int) -> None:
    assert left_shards(settings_of(valkey.url, shards)) == {}
    put(redis)
    put(redis)
    (problem,) = server_problems(settings_of(valkey.url, shards))
    assert problem.key == "BUNCH_SHARDS"
    assert "2 requests are in shards that it does not have (s3), and no worker serves them" in problem.fix
    assert "BUNCH_SHARDS=4" in problem.fix
    assert list(server_problems(settings_of(valkey.url, 4))) == []


def test_a_shard_that_a_worker_serves_is_not_left(redis: Redis, valkey: PrivateValkey) -> None:
    put(redis)
    WorkerRegistry(redis, 60.0, SHARD).beat("w1", b"")
    settings = settings_of(valkey.url, 2)
    assert left_shards(settings) == {"s3": Left(1, served=True)}
    assert list(server_problems(settings)) == []
    (warning,) = (each for each in server_warnings(settings) if each.key == "BUNCH_SHARDS")
    assert "workers serve them" in warning.fix


def test_what_a_dead_worker_has_leased_is_left(redis: Redis, valkey: PrivateValkey) -> None:
    put(redis)
    RedisBatchStore(redis, "w1", SHARD).claim(MODEL, "b1", 1)
    redis.zadd(SHARD.workers(), {"w1": 1})
    assert left_shards(settings_of(valkey.url, 2)) == {"s3": Left(1, served=False)}


def test_the_ops_worker_says_so_when_it_starts(
    redis: Redis, valkey: PrivateValkey, caplog: pytest.LogCaptureFixture
) -> None:
    put(redis)
    app = SimpleNamespace(bunch_settings=settings_of(valkey.url, 2))
    step = PresenceStep(SimpleNamespace(app=app, hostname="ops@here"))
    with caplog.at_level(logging.ERROR):
        step.start(None)
        wait_until(lambda: "1 requests are in shards that it does not have (s3)" in caplog.text)
        step.stop(None)


def test_a_cluster_is_asked_node_by_node(valkey: PrivateValkey) -> None:
    nodes = Clustered()
    try:
        nodes.start()
        settings = settings_of(nodes.url, 2, broker_url=valkey.url)
        assert left_shards(settings) == {}
        with closing(connect(nodes.url, shard_tag=SHARD.tag)) as client:
            put(client)
        assert left_shards(settings) == {"s3": Left(1, served=False)}
    finally:
        nodes.stop()

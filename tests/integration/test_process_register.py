"""The register of processes: who is there, what it uses, and what differs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from redis import Redis

from config.keys import Shard
from config.settings import ModelSettings
from config.shards import only_home
from tasks.fleet.process_register import KEPT_MS, Presence, RoleRow, Roles, usage_of
from webapp.api.machine import machine_metrics

MODELS = {name: ModelSettings(name=name, source="a:B", max_batch_size=size) for name, size in (("m", 8), ("n", 64))}
KEYS = Shard()


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate()


def told(redis: Redis, **changes: object) -> RoleRow:
    """One that was heard of, as if it were another process."""
    row = RoleRow("x", "web", "web@there", "there", 1, 0.0)
    row = msgspec.structs.replace(row, **changes)
    redis.sadd(KEYS.roles(), row.id)
    redis.set(KEYS.role(row.id), msgspec.json.encode(row), px=KEPT_MS - row.age_ms)
    return row


def test_who_beats_is_there_and_who_leaves_is_not(redis: Redis, child: int) -> None:
    presence = Presence(redis, "worker", lambda: MODELS, lambda: "worker1@here", lambda: {"m/0": child})
    presence.beat()
    (row,) = Roles(redis).rows()
    assert (row.role, row.name, row.pid) == ("worker", "worker1@here", os.getpid())
    assert row.age_ms < 30_000
    assert row.usage.memory_bytes > 1_000_000
    assert row.usage.fds > 2
    assert row.executors["m/0"].memory_bytes > 0
    assert set(row.models) == {"m", "n"}
    presence.leave()
    assert Roles(redis).rows() == []
    assert redis.keys("bunch:role*") == []


def test_what_was_changed_meanwhile_is_told(redis: Redis) -> None:
    models = dict(MODELS)
    presence = Presence(redis, "worker", lambda: models)
    presence.beat()
    (before,) = Roles(redis).rows()
    models["m"] = msgspec.structs.replace(models["m"], timeout_ms=1)
    presence.beat()
    (after,) = Roles(redis).rows()
    assert after.models["n"] == before.models["n"]
    assert after.models["m"] != before.models["m"]


def test_who_falls_silent_is_spoken_of_for_a_minute(redis: Redis) -> None:
    told(redis, id="a", age_ms=40_000)
    told(redis, id="b", name="web@here")
    told(redis, id="c", name="web@gone")
    redis.delete(KEYS.role("c"))
    roles = Roles(redis)
    assert {row.id: roles.is_silent(row) for row in roles.rows()} == {"a": True, "b": False}
    assert redis.smembers(KEYS.roles()) == {b"a", b"b"}


def test_metrics_that_need_no_gpu(redis: Redis, child: int) -> None:
    Presence(redis, "worker", lambda: MODELS, lambda: "worker1@here", lambda: {"m/0": child}).beat()
    Presence(redis, "web", lambda: MODELS).beat()
    told(redis, id="a", age_ms=40_000, version="0.0.9", python="3.11.2")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(type("All", (), {"collect": lambda self: machine_metrics(only_home(redis))})())
    text = generate_latest(registry).decode()
    for line in (
        'bunch_processes{role="web",state="alive"} 1.0',
        'bunch_processes{role="web",state="silent"} 1.0',
        'bunch_processes{role="ops",state="alive"} 0.0',
        'bunch_process_resident_memory_bytes{process="worker1@here",role="worker"}',
        'bunch_process_open_fds{process="worker1@here:m/0",role="executor"}',
        'bunch_process_cpu_seconds_total{process="web@',
        'bunch_build_info{python="3.11.2",version="0.0.9"} 1.0',
    ):
        assert line in text, line
    used = next(line for line in text.splitlines() if line.startswith("bunch_redis_memory_used_bytes "))
    assert float(used.split()[1]) > 100_000


def test_a_user_that_may_not_ask_for_memory_has_the_other_metrics(redis: Redis) -> None:
    redis.execute_command("ACL", "SETUSER", "plain", "on", ">secret", "~*", "+@all", "-info")
    place = redis.connection_pool.connection_kwargs
    plain = Redis(place["host"], place["port"], username="plain", password="secret")
    try:
        names = {family.name for family in machine_metrics(only_home(plain))}
    finally:
        plain.close()
        redis.execute_command("ACL", "DELUSER", "plain")
    assert "bunch_processes" in names
    assert not any(name.startswith("bunch_redis_memory") for name in names)


def test_nothing_is_told_of_a_process_that_has_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert usage_of(process.pid).memory_bytes == 0

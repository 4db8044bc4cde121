"""Redis tells an idle worker that something has come to a queue, so that it need not look often."""

from __future__ import annotations

import select
import threading
import time

import pytest
from redis import Redis

from batching.claim.idle_watch import IdleWatch
from batching.claim.store import RedisBatchStore
from config.keys import Shard
from config.redis import connect
from config.tiers import Tier
from config.tracked_line import TrackedLine
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

QUEUE = Shard().queue("echo", Tier.PAID)
LONG_S = 30.0


def test_a_change_of_what_was_read_is_announced_once(redis: Redis, valkey: PrivateValkey) -> None:
    line = TrackedLine(connect(valkey.url))
    assert line.fileno is None
    line.command("EXISTS", QUEUE)
    assert not _is_readable(line)
    redis.lpush("another", "x")
    redis.lpush(QUEUE, "x")
    wait_until(lambda: _is_readable(line))
    line.heard()
    assert not _is_readable(line)
    redis.lpush(QUEUE, "y")
    redis.ping()
    assert not _is_readable(line, 0.05)
    assert line.command("EXISTS", QUEUE) == 1
    redis.lpush(QUEUE, "z")
    wait_until(lambda: _is_readable(line))
    line.close()


@pytest.mark.parametrize("kind", ["normal", "pubsub"])
def test_a_lost_connection_of_either_kind_is_replaced(redis: Redis, valkey: PrivateValkey, kind: str) -> None:
    line = TrackedLine(connect(valkey.url))
    line.command("EXISTS", QUEUE)
    redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    line.heard()
    line.command("EXISTS", QUEUE)
    redis.lpush(QUEUE, "x")
    wait_until(lambda: _is_readable(line))
    line.close()


def test_without_the_right_to_track_it_reads_all_the_same(redis: Redis, valkey: PrivateValkey) -> None:
    rights = ("~*", "&*", "+@read", "+@connection", "+subscribe", "-client|tracking")
    redis.execute_command("ACL", "SETUSER", "poor", "on", ">p", *rights)
    try:
        line = TrackedLine(connect(valkey.url.replace("redis://", "redis://poor:p@")))
        assert line.command("EXISTS", QUEUE) == 0
        assert line.fileno is None
        line.heard()
        line.close()
    finally:
        redis.execute_command("ACL", "DELUSER", "poor")


def test_the_watch_finds_a_message_that_nobody_rang_for(
    redis: Redis, valkey: PrivateValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batching.claim.idle_watch.COLD_AFTER_S", 0.0)
    # Only an announcement can make it look.
    monkeypatch.setattr("batching.claim.idle_watch.TOLD_LOOK_EVERY_S", LONG_S)
    store = RedisBatchStore(connect(valkey.url), "w")
    watch = IdleWatch(store)
    seat = watch.seat("echo", threading.Condition())
    left = threading.Event()

    def loop() -> None:
        while not seat.rest(frozenset(), lambda: False):
            time.sleep(0.001)
        left.set()

    thread = threading.Thread(target=loop)
    watch.start()
    thread.start()
    try:
        wait_until(lambda: watch.held == 1 and seat.resting and store.is_told)
        assert not left.wait(0.3)
        redis.lpush(QUEUE, "message")
        assert left.wait(LONG_S / 3)
    finally:
        seat.let_go()
        thread.join(LONG_S)
        redis.lpush(Shard().bell("echo"), 1)
        watch.stop()


def _is_readable(line: TrackedLine, within_s: float = 0.0) -> bool:
    assert line.fileno is not None
    return bool(select.select([line.fileno], [], [], within_s)[0])

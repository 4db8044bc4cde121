"""The exchange with Redis when Redis fails in the middle of it: nothing is lost, and nothing is taken twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisGone
from redis.exceptions import RedisError

from batching.fast_header import NO_KEY, FastHeader, write_fast_header
from batching.memory.store import Letter, MemoryStore
from cli.collocated.leftovers import Leftovers
from config.settings import ModelSettings
from tasks.protocol.results import CeleryCodec


class FailingRedis:
    """The commands of an exchange over one queue. A call to a command in `fails` raises after or before its effect."""

    def __init__(self, messages: list[bytes]) -> None:
        self.queue = messages
        self.fails: dict[str, str] = {}

    def register_script(self, text: str) -> Any:
        return lambda keys: (0, [len(self.queue), 0, 0], [], [])

    def zrange(self, *about: Any, **options: Any) -> list[bytes]:
        return []

    def lrange(self, queue: str, first: int, last: int) -> list[bytes]:
        assert last == -1
        return self.queue[first:]

    def ltrim(self, queue: str, first: int, last: int) -> None:
        with_effect = self.fails.get("ltrim") != "before"
        if with_effect:
            self.queue = self.queue[: last + 1 or None]
        if self.fails.pop("ltrim", ""):
            raise RedisGone("away")

    def pipeline(self, **options: Any) -> Any:
        return self

    def hset(self, *about: Any, **options: Any) -> None: ...

    def zadd(self, *about: Any, **options: Any) -> None: ...

    def execute(self) -> None:
        raise KeyboardInterrupt


def message(store: MemoryStore, number: int) -> bytes:
    now = store.now_ms()
    return write_fast_header(FastHeader(now + 60_000, now + 60_000, now, 0, 0, True, 60_000, f"{number:036d}", NO_KEY))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def redis(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingRedis]:
    monkeypatch.setattr(Leftovers, "_is_alone", lambda self: True)
    return FailingRedis([message(store, number) + b'"}}' for number in range(1200)])


def leftovers(redis: Any, store: MemoryStore) -> Leftovers:
    return Leftovers(redis, store, CeleryCodec(60_000), {"m": ModelSettings(name="m", source="a:B")}, "w", 5)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_redis_did_not_confirm_is_neither_lost_nor_taken_twice(
    redis: FailingRedis, store: MemoryStore, when: str
) -> None:
    asked = [each.decode() for each in redis.queue]
    redis.fails["ltrim"] = when
    exchange = leftovers(redis, store)
    with pytest.raises(RedisError):
        exchange.sync()
    assert store.waiting == 500
    exchange.sync()
    assert redis.queue == []
    assert [item.message.decode() for _, _, item in store.take_all()] == asked[::-1]


def test_a_message_that_cannot_be_refused_now_leaves_the_others_where_they_are(
    redis: FailingRedis, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis.queue[-2] = b"foreign"
    refused: list[bytes] = []

    def refuse(self: Leftovers, model: str, rank: int, message: bytes) -> None:
        refused.append(message)
        if len(refused) == 1:
            raise RedisGone("away")

    monkeypatch.setattr(Leftovers, "_refuse", refuse)
    exchange = leftovers(redis, store)
    with pytest.raises(RedisError):
        exchange.sync()
    assert (store.waiting, len(redis.queue)) == (1, 1200)
    exchange.sync()
    assert (store.waiting, redis.queue, refused) == (1199, [], [b"foreign"] * 2)


def test_dead_letters_stay_when_their_way_to_redis_is_interrupted(redis: FailingRedis, store: MemoryStore) -> None:
    store.letters["t"] = Letter(0, b"m", b"{}")
    with pytest.raises(KeyboardInterrupt):
        leftovers(redis, store).sync()
    assert list(store.letters) == ["t"]


def test_nothing_is_taken_any_more_once_all_is_saved(redis: FailingRedis, store: MemoryStore) -> None:
    exchange = leftovers(redis, store)
    exchange.save()
    exchange.sync()
    assert (store.waiting, len(redis.queue)) == (0, 1200)

"""A batch store, real or in memory, with methods for a test to fill and inspect it."""

from __future__ import annotations

from typing import Any, Protocol, cast

import msgspec
from redis import Redis

from batching.claim.place_lines import PlaceLines
from batching.claim.sharded_store import ShardedBatchStore
from batching.claim.store import BatchStore, Claim, RedisBatchStore, Settled
from batching.fast_header import NO_KEY, FastHeader, write_fast_header
from batching.memory.store import Letter, state_of
from config.keys import Shard
from config.redis import dedicated_connection
from config.shards import Place, Places
from config.tiers import Tier
from tests.fakes.store import MemoryBatchStore, epoch_ms

KEYS = Shard()
MODEL = "m"
HOUR_MS = 3_600_000
# The pause of a retry: longer than any test, shorter than the limit of a plausible pause.
PAUSE_MS = 55_000
_CHANNELS = ("bunch:reply:a", "bunch:reply:b", "the-end")


class World(Protocol):
    """A store, and a test's access to it."""

    store: BatchStore

    def put(self, message: bytes, tier: Tier) -> None: ...
    def queued(self, tier: Tier) -> list[bytes]:
        """The queued messages, head first."""

    def set_state(self, task_id: str, status: str) -> None: ...
    def results(self, task_ids: list[str]) -> list[bytes | None]: ...
    def cancel(self, task_id: str) -> None: ...
    def leased(self, batch_id: str) -> bool: ...
    def letters(self) -> dict[str, Letter]: ...
    def end_pauses(self) -> None: ...
    def replies(self) -> list[tuple[str, list[object]]]:
        """Channel and content of each publish since the last call."""


class MemoryWorld:
    def __init__(self) -> None:
        self.store = MemoryBatchStore()

    def put(self, message: bytes, tier: Tier) -> None:
        self.store.put(MODEL, tier, message)

    def queued(self, tier: Tier) -> list[bytes]:
        return self.store.queued(MODEL, tier)

    def set_state(self, task_id: str, status: str) -> None:
        self.store.states.set(task_id, state_of(task_id, status), HOUR_MS)

    def results(self, task_ids: list[str]) -> list[bytes | None]:
        return [self.store.results.get(KEYS.result(each)) for each in task_ids]

    def cancel(self, task_id: str) -> None:
        self.store.take_back(task_id)

    def leased(self, batch_id: str) -> bool:
        return batch_id in self.store.leases

    def letters(self) -> dict[str, Letter]:
        return dict(self.store.letters)

    def end_pauses(self) -> None:
        self.store.end_pauses(MODEL)

    def replies(self) -> list[tuple[str, list[object]]]:
        got = [(channel, [msgspec.json.decode(each) for each in raw]) for channel, raw in self.store.replies]
        self.store.replies.clear()
        return got


class RedisWorld:
    """All that is put is put into the shard of `keys`."""

    def __init__(self, redis: Redis, keys: Shard = KEYS, store: BatchStore | None = None) -> None:
        self.store = store or RedisBatchStore(redis, "w1")
        self.keys = keys
        # redis-py types every reply for both of its ways to decode.
        self._redis = cast("Any", redis)
        self._listener = dedicated_connection(redis.connection_pool)
        # In a shard with a tag scripts publish as a cluster needs it.
        self._listener.send_command("SSUBSCRIBE" if keys.tag else "SUBSCRIBE", *_CHANNELS)
        for _ in _CHANNELS:
            self._listener.read_response()

    def put(self, message: bytes, tier: Tier) -> None:
        self._redis.lpush(self.keys.queue(MODEL, tier), message)
        self._redis.lpush(self.keys.bell(MODEL), 1)
        self._redis.ltrim(self.keys.bell(MODEL), 0, 0)

    def queued(self, tier: Tier) -> list[bytes]:
        waiting: list[bytes] = self._redis.lrange(self.keys.queue(MODEL, tier), 0, -1)
        return waiting[::-1]

    def set_state(self, task_id: str, status: str) -> None:
        self._redis.set(self.keys.result(task_id), state_of(task_id, status), px=HOUR_MS)

    def results(self, task_ids: list[str]) -> list[bytes | None]:
        found: list[bytes | None] = self._redis.mget([self.keys.result(each) for each in task_ids]) if task_ids else []
        return found

    def cancel(self, task_id: str) -> None:
        self._redis.zadd(self.keys.cancelled(), {task_id: 10**13})

    def leased(self, batch_id: str) -> bool:
        in_set = bool(self._redis.sismember(self.keys.leases("w1"), batch_id))
        assert in_set == bool(self._redis.exists(self.keys.lease(batch_id)))
        return in_set

    def letters(self) -> dict[str, Letter]:
        found = {}
        for task_id in self._redis.zrange(self.keys.dead(), 0, -1):
            stored = self._redis.hgetall(self.keys.dead(task_id.decode()))
            found[task_id.decode()] = Letter(int(stored[b"rank"]), stored[b"message"], stored[b"record"])
        return found

    def end_pauses(self) -> None:
        for each in self._redis.zrange(self.keys.delayed(MODEL), 0, -1):
            self._redis.zadd(self.keys.delayed(MODEL), {each: 0})

    def replies(self) -> list[tuple[str, list[object]]]:
        self._redis.execute_command("SPUBLISH" if self.keys.tag else "PUBLISH", _CHANNELS[-1], "")
        got: list[tuple[str, list[object]]] = []
        while True:
            _, channel, message = self._listener.read_response()
            if channel.decode() == _CHANNELS[-1]:
                return got
            got.append((channel.decode(), msgspec.json.decode(message)))

    def close(self) -> None:
        self.store.leave_bell()
        self._listener.disconnect()


def sharded_world(redis: Redis, count: int) -> RedisWorld:
    """A store over so many places of one server, of which only the last shard has anything."""
    home = Place(Shard(), redis)
    shards = tuple(Place(Shard(f"{{s{number}}}"), redis, number) for number in range(count - 1)) or (home,)
    return RedisWorld(redis, shards[-1].keys, ShardedBatchStore(PlaceLines(Places(home, shards)), "w1"))


def ours(
    task_id: str,
    *,
    expired: bool = False,
    tracked: bool = True,
    lost: int = 0,
    attempt: int = 0,
    enqueued: int = 0,
    key: str = NO_KEY,
    due_in_ms: int = 2 * HOUR_MS,
) -> bytes:
    now = epoch_ms()
    limit = now - 1000 if expired else now + HOUR_MS
    stamp = FastHeader(now + due_in_ms, limit, enqueued or now, attempt, lost, tracked, HOUR_MS, task_id, key)
    return write_fast_header(stamp) + b'","lang":"py"},"body":"' + task_id.encode() + b'"}'


def foreign(name: str) -> bytes:
    return b'{"body": "%s", "headers": {"lang": "py", "empty": []}, "properties": {}}' % name.encode()


def names(claim: Claim) -> list[str]:
    return [name_of(each.message) for each in claim.entries]


def name_of(message: bytes) -> str:
    return str(msgspec.json.decode(message)["body"])


def settled(position: int, task_id: str, reply_to: str = "", *, size: int = 1, letter: bytes = b"") -> Settled:
    result = msgspec.json.encode({"task_id": task_id, "result": "x" * size})
    return Settled(position, task_id, HOUR_MS, reply_to, result, letter)

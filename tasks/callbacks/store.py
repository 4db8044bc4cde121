"""Results owed to receivers, in Redis: noted before a caller is told 202, taken under a lease, gone once delivered.

A hash per callback, and its place in `bunch:callbacks`: the time at which a sender looks at it next. A sender that dies
loses its lease, and another one sends again: a receiver gets each result at least once, and knows it by `task_id`. All
of it is at home; only the results are in their requests' places.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from redis.exceptions import RedisError

from batching.claim.store import Keep
from config.shards import Places
from config.tiers import TIERS, Tier
from tasks.protocol.ids import place_of
from tasks.protocol.results import DeadLetter
from tasks.script_args import DUE, OWE, DueArgs, DueKeys, OweArgs, OweKeys

RETRIED_S = 3600.0
"""The time for which a callback is tried again; then it is a dead letter."""
KEEP_MS = int(RETRIED_S * 1000) + 600_000
"""The least time for which the result of such a request is kept, so that a pause of all senders loses nothing."""
LETTER_PREFIX = "callback:"
_LONGEST_LOOK_S = 30.0
_TOLD_MS = 600_000


class Callback(msgspec.Struct, frozen=True):
    """One callback. Times are epoch milliseconds: `until_ms` is when it is given up at the latest, if no
    attempt was made before, `first_ms` when the first one was. `body` is set only where the result itself may be gone.
    """

    url: str
    model: str = ""
    tier: str = ""
    owed_ms: int = 0
    until_ms: int = 0
    attempts: int = 0
    first_ms: int = 0
    error: str = ""
    delivered_ms: int = 0
    body: bytes = b""


class Taken(NamedTuple):
    """The ids that were taken, at Redis' time `now_ms`; `next_ms` is the time of the next look at any."""

    now_ms: int
    next_ms: float
    ids: list[str]


class CallbackStore:
    """Reads and writes callbacks. Every method may raise RedisError."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._redis = redis = places.home.redis
        self._keys = places.home.keys
        self._owe = redis.register_script(OWE.text)
        self._due = redis.register_script(DUE.text)

    def name(self, task_id: str) -> str:
        """The Redis key of a callback."""
        return self._keys.callback(task_id)

    def owe(self, task_id: str, url: str, model: str, tier: Tier, timeout_s: float, now_s: float) -> None:
        """Note a callback. A sender looks at it once `finished` says so, and sometimes before, should nobody say so."""
        fields = {
            "url": url,
            "model": model,
            "tier": tier.value,
            "owed_ms": int(now_s * 1000),
            "until_ms": int((now_s + timeout_s + RETRIED_S) * 1000),
            "attempts": 0,
        }
        look_s = min(timeout_s + 1.0, _LONGEST_LOOK_S)
        self._put(task_id, fields, look_s, KEEP_MS + int(timeout_s * 1000))

    def finished(self, task_id: str) -> None:
        """The outcome is there: the callback is due."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.zadd(self._keys.callbacks(), {task_id: 0}, xx=True)
        pipeline.lpush(self._keys.callbacks_bell(), 1)
        pipeline.ltrim(self._keys.callbacks_bell(), 0, 0)
        pipeline.execute()

    def wait(self, timeout_s: float) -> None:
        """Return once the bell rings, or after that time."""
        self._redis.blpop([self._keys.callbacks_bell()], timeout=timeout_s)

    def take(self, most: int, lease_s: float, renew: Iterable[str] = ()) -> Taken:
        """Renew the leases of what is under way, and take up to `most` that are due."""
        args: list[Any] = [*DueArgs(lease_ms=int(lease_s * 1000), most=most), *renew]
        now_ms, next_ms, *ids = cast(
            "list[bytes]", self._due(keys=DueKeys(callbacks=self._keys.callbacks()), args=args)
        )
        return Taken(int(now_ms), float(next_ms) if next_ms else math.inf, [each.decode() for each in ids])

    def read(self, task_ids: Sequence[str]) -> list[Callback | None]:
        pipeline = self._redis.pipeline(transaction=False)
        for each in task_ids:
            pipeline.hgetall(self._keys.callback(each))
        return [_decoded(raw) for raw in pipeline.execute()]

    def result(self, task_id: str) -> bytes | None:
        place = place_of(self._places, task_id)
        return cast("bytes | None", place.redis.get(place.keys.result(task_id)))

    def look_again(self, at_ms: Mapping[str, int]) -> None:
        """Put off the callbacks until these times, which count as no attempts."""
        if at_ms:
            self._redis.zadd(self._keys.callbacks(), dict(at_ms), xx=True)

    def look_in(self, task_id: str, in_s: float) -> None:
        """The same for one callback, from now."""
        seconds, micros = self._redis.time()
        self.look_again({task_id: int((seconds + in_s) * 1000 + micros / 1000)})

    def put_off(self, task_id: str, callback: Callback, in_s: float) -> None:
        """Note a failed attempt, with the next one in `in_s`; the result is kept for longer."""
        noted = {"attempts": callback.attempts, "first_ms": callback.first_ms, "error": callback.error}
        self._put(task_id, noted, in_s, 2 * KEEP_MS)
        place = place_of(self._places, task_id)
        key = place.keys.result(task_id)
        if place.redis.pttl(key) in range(KEEP_MS):
            place.redis.pexpire(key, KEEP_MS)

    def delivered(self, task_id: str, callback: Callback, result_ttl_ms: int, now_s: float) -> None:
        """The receiver has it. Its result is kept no longer than others' from here on."""
        key = self._keys.callback(task_id)
        pipeline = self._settling(task_id, callback)
        if pipeline is None:
            return
        pipeline.zrem(self._keys.callbacks(), task_id)
        pipeline.hset(key, mapping={"delivered_ms": int(now_s * 1000), "attempts": callback.attempts, "error": ""})
        pipeline.hdel(key, "body")
        pipeline.pexpire(key, _TOLD_MS)
        pipeline.execute()
        place = place_of(self._places, task_id)
        result = place.keys.result(task_id)
        # In a shard that is down it expires later, and nothing is sent again for that.
        with contextlib.suppress(RedisError):
            if place.redis.pttl(result) > result_ttl_ms:
                place.redis.pexpire(result, result_ttl_ms)

    def drop(self, task_id: str) -> None:
        """Forget a callback of which there is nothing to send."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.zrem(self._keys.callbacks(), task_id)
        pipeline.delete(self._keys.callback(task_id))
        pipeline.execute()

    def bury(self, task_id: str, callback: Callback, body: bytes, why: str, now_s: float) -> None:
        """Make it a dead letter, with the body that nobody took. The oldest of too many dead letters go."""
        letter_id = LETTER_PREFIX + task_id
        record = DeadLetter(
            letter_id, callback.model, callback.tier, why, "", "", callback.attempts, 0, "", callback.owed_ms, now_s
        )
        dead = self._keys.dead()
        rank = next((rank for rank, tier in enumerate(TIERS) if tier.value == callback.tier), 0)
        pipeline = self._settling(task_id, callback)
        if pipeline is None:
            return
        pipeline.hset(
            self._keys.dead(letter_id),
            mapping={"message": body, "rank": rank, "record": msgspec.json.encode(record), "url": callback.url},
        )
        pipeline.zadd(dead, {letter_id: int(now_s * 1000)})
        pipeline.zrem(self._keys.callbacks(), task_id)
        pipeline.hset(self._keys.callback(task_id), mapping={"attempts": callback.attempts, "error": why})
        pipeline.hdel(self._keys.callback(task_id), "body")
        pipeline.pexpire(self._keys.callback(task_id), _TOLD_MS)
        pipeline.zcard(dead)
        surplus = pipeline.execute()[-1] - Keep().count
        if surplus > 0:
            oldest = cast("list[bytes]", self._redis.zrange(dead, 0, surplus - 1))
            self._redis.zrem(dead, *oldest)
            self._redis.unlink(*(self._keys.dead(each.decode()) for each in oldest))

    def _settling(self, task_id: str, callback: Callback) -> Any:
        """A transaction that ends this callback; None if a later call with the same Idempotency-Key has named another
        URL meanwhile, which is still owed. It fails with a WatchError, a RedisError, if one does so now.
        """
        pipeline: Any = self._redis.pipeline(transaction=True)
        pipeline.watch(self._keys.callback(task_id))
        url = pipeline.hget(self._keys.callback(task_id), "url")
        if url is not None and url.decode() != callback.url:
            pipeline.reset()
            return None
        pipeline.multi()
        return pipeline

    def replay(self, letter_id: str, now_s: float) -> bool:
        """Send a dead letter's body again, for another hour. False if it is gone."""
        letter, task_id = self._keys.dead(letter_id), letter_id.removeprefix(LETTER_PREFIX)
        stored = cast("dict[bytes, bytes]", self._redis.hgetall(letter))
        if not stored:
            return False
        record = msgspec.json.decode(stored[b"record"], type=DeadLetter)
        fields = {
            "url": stored[b"url"],
            "body": stored[b"message"],
            "model": record.model,
            "tier": record.tier,
            "owed_ms": int(now_s * 1000),
            "until_ms": int((now_s + RETRIED_S) * 1000),
            "attempts": 0,
            "first_ms": 0,
            "error": "",
        }
        self._put(task_id, fields, 0.0, 2 * KEEP_MS, ring=True)
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.zrem(self._keys.dead(), letter_id)
        pipeline.delete(letter)
        pipeline.execute()
        return True

    def find(self, task_id: str) -> tuple[Callback, int | None] | None:
        """A callback and the time in ms of its next look; None as the time if there is none any more."""
        (found,) = self.read([task_id])
        if found is None:
            return None
        at = self._redis.zscore(self._keys.callbacks(), task_id)
        return found, None if at is None else int(at)

    def _put(self, task_id: str, fields: Mapping[str, Any], in_s: float, keep_ms: int, *, ring: bool = False) -> None:
        keys = OweKeys(
            callbacks=self._keys.callbacks(),
            callback=self._keys.callback(task_id),
            bell=self._keys.callbacks_bell(),
        )
        args = OweArgs(task_id=task_id, look_ms=int(in_s * 1000), keep_ms=keep_ms, now=int(ring))
        self._owe(keys=keys, args=[*args, *(part for pair in fields.items() for part in pair)])


def _decoded(raw: Mapping[bytes, bytes]) -> Callback | None:
    if b"url" not in raw:
        return None
    fields = {name.decode(): value for name, value in raw.items()}
    body = fields.pop("body", b"")
    texts = {name: value.decode() for name, value in fields.items()}
    return msgspec.structs.replace(msgspec.convert(texts, Callback, strict=False), body=body)

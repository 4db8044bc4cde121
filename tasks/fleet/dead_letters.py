"""Dead letters: requests that failed for good, kept for an operator with everything needed to send them again.

`finish.lua` writes them in the same call that answers the caller. A replay keeps the task id, so a caller who polls for
it still gets the answer. A result that could not be pushed is one too: its id is `callback:<task id>`, and its message
what was to be sent, which a replay sends again.
"""

from __future__ import annotations

import time
from typing import cast

import msgspec
from redis import Redis

from config.keys import Shard
from config.tiers import Tier
from tasks.callbacks.store import LETTER_PREFIX, CallbackStore
from tasks.protocol.messages import without_expiry
from tasks.protocol.results import DeadLetter
from tasks.script_args import REPLAY, ReplayArgs, ReplayKeys

_decode = msgspec.json.Decoder(DeadLetter).decode


class DeadLetters:
    """Lists, shows, replays and deletes dead letters."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._redis = redis
        self._keys = shard or Shard()
        self._replay = redis.register_script(REPLAY.text)

    def newest(self, limit: int = 1000) -> list[DeadLetter]:
        """Dead letters, newest first."""
        ids = cast("list[bytes]", self._redis.zrevrange(self._keys.dead(), 0, limit - 1))
        pipeline = self._redis.pipeline(transaction=False)
        for each in ids:
            pipeline.hget(self._keys.dead(each.decode()), "record")
        return [_decode(raw) for raw in pipeline.execute() if raw]

    def show(self, task_id: str) -> tuple[DeadLetter, bytes] | None:
        """The record and the message as it was queued; None for an unknown id."""
        stored = cast("dict[bytes, bytes]", self._redis.hgetall(self._keys.dead(task_id)))
        return (_decode(stored[b"record"]), stored[b"message"]) if stored else None

    def replay(self, task_id: str, time_s: float, result_ttl_s: float) -> bool:
        """Queue a dead letter again under its own id, with `time_s` until its deadline and no attempts used. False if
        gone.
        """
        stored = self.show(task_id)
        if stored is None:
            return False
        if task_id.startswith(LETTER_PREFIX):
            return CallbackStore(self._redis, self._keys).replay(task_id, time.time())
        record, message = stored
        keys = ReplayKeys(
            dead=self._keys.dead(),
            letter=self._keys.dead(task_id),
            result=self._keys.result(task_id),
            queue=self._keys.queue(record.model, Tier(record.tier)),
            bell=self._keys.bell(record.model),
        )
        args = ReplayArgs(
            task_id=task_id,
            time_ms=int(time_s * 1000),
            result_ttl_ms=int(result_ttl_s * 1000),
            message=without_expiry(message),
        )
        return bool(self._replay(keys=keys, args=args))

    def drop(self, task_id: str) -> bool:
        """Delete a dead letter. False if there was none."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.zrem(self._keys.dead(), task_id)
        pipeline.delete(self._keys.dead(task_id))
        removed, _ = pipeline.execute()
        return bool(removed)

    def ids(self) -> list[str]:
        return [each.decode() for each in cast("list[bytes]", self._redis.zrange(self._keys.dead(), 0, -1))]

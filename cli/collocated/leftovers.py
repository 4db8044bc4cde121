"""A collocated process keeps in Redis its dead letters, and at its stop whatever is not finished or not fetched.

    stop   ──▶ polled requests that still wait, and outcomes that may still be asked for
    start  ◀── those requests; the outcomes are read where they are
    always ──▶ dead letters; ◀── dead letters that an operator replays

Messages and outcomes have the same form as in the durable mode, which continues with them as well. A message that a
plain Celery client has sent is answered with an error: nobody would ever run it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from redis import Redis

from batching.claim.lease import Entry, Verdict
from batching.memory.queues import Queued
from batching.memory.store import MemoryStore
from batching.policy import Reason
from batching.ports import BatchInfo, Codec, UnreadableMessage
from batching.request import Failed
from batching.script_args import LOOK, LookKeys
from config.keys import Shard
from config.settings import ModelSettings
from config.tiers import TIERS
from tasks.fleet.registry_reader import Fleet

logger = logging.getLogger(__name__)

_AT_ONCE = 500
# Outcomes for callers on open connections are kept for no longer than this.
_HEARD_MS = 10_000
_FOREIGN = (
    "this server runs in collocated mode, which serves no plain Celery clients: start it in durable mode "
    "(BUNCH_MODE=durable), or send the request over HTTP"
)


class Leftovers:
    """The exchange of one process with Redis. Every method raises RedisError, and may then be called again."""

    def __init__(
        self,
        redis: Redis,
        store: MemoryStore,
        codec: Codec,
        models: Mapping[str, ModelSettings],
        worker_id: str,
        lease_ttl_s: float,
    ) -> None:
        # redis-py types every reply for both of its ways to decode.
        self._redis: Any = redis
        self._store = store
        self._codec = codec
        self._models = models
        self._worker_id = worker_id
        self._fleet = Fleet(redis, lease_ttl_s=lease_ttl_s)
        self._keys = Shard()
        self._look = redis.register_script(LOOK.text)
        self._warned = False
        # Messages that were taken from a queue, and may still be at its end: Redis did not say that they are gone.
        self._taken: dict[str, list[bytes]] = {}
        # Once all is saved, nothing more may be taken.
        self._is_over = False

    def sync(self) -> None:
        """Move dead letters out, and what waits in Redis in."""
        self._save_letters()
        if self._is_alone():
            for model in self._models:
                self._adopt(model)

    def save(self) -> None:
        """The process stops: move what can still be asked for to Redis."""
        self._is_over = True
        self._save_letters()
        states = [each for each in self._store.states.items() if each[2] > _HEARD_MS]
        waiting = [each for each in self._store.take_all() if each[2].header and each[2].header.tracked]
        for start in range(0, max(len(states), len(waiting)), _AT_ONCE):
            pipeline = self._redis.pipeline(transaction=False)
            for task_id, value, left_ms in states[start : start + _AT_ONCE]:
                pipeline.set(self._keys.result(task_id), value, px=left_ms)
            for model, rank, item in waiting[start : start + _AT_ONCE]:
                pipeline.lpush(self._keys.queue(model, TIERS[rank]), item.message)
            pipeline.execute()
        if waiting:
            logger.info("%d requests were not finished; they are in Redis, and run at the next start", len(waiting))

    def _save_letters(self) -> None:
        letters = self._store.take_letters()
        if not letters:
            return
        now = self._store.now_ms()
        pipeline = self._redis.pipeline(transaction=True)
        for task_id, letter in letters.items():
            fields = {"message": letter.message, "rank": letter.rank, "record": letter.record}
            pipeline.hset(self._keys.dead(task_id), mapping=fields)
            pipeline.zadd(self._keys.dead(), {task_id: now})
        try:
            pipeline.execute()
        except BaseException:
            # Also when its greenlet is ended meanwhile.
            self._store.letters = {**letters, **self._store.letters}
            raise

    def _is_alone(self) -> bool:
        """False while workers of the durable mode use the same Redis: what waits there is theirs."""
        others = [each.name for each in self._fleet.healthy() if each.id != self._worker_id and not each.queues]
        if others and not self._warned:
            self._warned = True
            logger.error(
                "other workers use the same Redis (%s); collocated mode needs one of its own, and leaves to them what "
                "waits in it",
                ", ".join(others),
            )
        return not others

    def _adopt(self, model: str) -> None:
        queues = self._keys.queues(model)
        _, depths, *_ = self._look(keys=(*LookKeys(delayed=self._keys.delayed(model)), *queues))
        for rank, (queue, depth) in enumerate(zip(queues, depths, strict=True)):
            left = int(depth)
            while left > 0 and (count := self._adopt_some(model, rank, queue)):
                left -= count

    def _adopt_some(self, model: str, rank: int, queue: str) -> int:
        """Take the messages at the end of a queue; returns how many. Each is here before it is gone from there."""
        messages = cast("list[bytes]", self._redis.lrange(queue, -_AT_ONCE, -1))[::-1]
        if self._is_over:
            return 0
        taken = self._taken.get(queue, [])
        if messages[: len(taken)] != taken:
            taken = []
        self._taken[queue] = taken
        for message in messages[len(taken) :]:
            self._take(model, rank, queue, message)
            taken.append(message)
        if messages:
            self._redis.ltrim(queue, 0, -len(messages) - 1)
        del self._taken[queue]
        return len(messages)

    def _take(self, model: str, rank: int, queue: str, message: bytes) -> None:
        item = Queued.of(message)
        header = item.header
        if header is None:
            self._refuse(model, rank, message)
            return
        if header.tracked:
            left_ms = max(1, header.deadline_ms - self._store.now_ms()) + header.result_ttl_ms
            self._store.set_pending(header.task_id, left_ms)
        self._store.enqueue(model, rank, item)

    def _refuse(self, model: str, rank: int, message: bytes) -> None:
        try:
            request = self._codec.decode(Entry(1, rank, Verdict.RUN, message))
        except UnreadableMessage as error:
            logger.error("%s: a message in Redis cannot be read, and is dropped: %s: %.200r", model, error, message)
            return
        info = BatchInfo("", model, self._models[model].version, 1, Reason.IDLE, self._store.now_ms())
        settled = self._codec.encode(request, Failed(_FOREIGN, code="MODEL_UNAVAILABLE"), info)
        key = self._keys.result(request.id)
        logger.error("%s: request %s comes from a plain Celery client and is refused: %s", model, request.id, _FOREIGN)
        if settled.ttl_ms:
            self._redis.set(key, settled.result, px=settled.ttl_ms, nx=True)
            self._redis.publish(key, settled.result)

"""Collects messages that a plain Celery client has sent with a priority.

kombu's Redis transport keeps them in lists of their own beside the queue (`kombu.transport.redis.Channel._q_for_pri`),
which no claim looks at. Tiers are Bunch's priorities; these messages join the end of their tier's queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from redis import Redis

from batching.script_args import GATHER, GatherArgs
from config.keys import Shard
from config.tiers import TIERS

_MOST_AT_ONCE = 1000


class PriorityLists:
    """The priority lists of all models. Constructing builds; call `gather` regularly, from one thread."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._gather = redis.register_script(GATHER.text)
        self._keys = shard or Shard()

    def gather(self, models: Iterable[str]) -> int:
        """Move the messages of all `models` to their queues; returns how many. Raises RedisError."""
        keys: list[str] = []
        lists = 0
        for model in models:
            keys.append(self._keys.bell(model))
            for queue in self._keys.queues(model):
                beside = self._keys.priorities(queue)
                lists = len(beside)
                keys += (queue, *beside)
        args = GatherArgs(queues=len(TIERS), lists=lists, max_moved=_MOST_AT_ONCE)
        return cast("int", self._gather(keys=keys, args=args)) if keys else 0

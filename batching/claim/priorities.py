"""Collects messages that a plain Celery client has sent with a priority.

kombu's Redis transport keeps them in lists of their own beside the queue (`kombu.transport.redis.Channel._q_for_pri`),
which no claim looks at. Tiers are Bunch's priorities; these messages join the end of their tier's queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import cast

from redis import Redis

from batching.script_args import GATHER, GatherArgs
from config.keys import Shard
from config.redis import Line, Script
from config.tiers import TIERS

_MOST_AT_ONCE = 1000
_LISTS = len(Shard.priorities(""))
_GATHER = Script(GATHER.text)


class PriorityLists:
    """The priority lists of all models. Constructing builds; call `gather` regularly, from one thread."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._line = Line(redis)
        self._keys = shard or Shard()
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def gather(self, models: Iterable[str]) -> int:
        """Move the messages of all `models` to their queues; returns how many. Raises RedisError."""
        names = self._names_of(tuple(models))
        args = GatherArgs(queues=len(TIERS), lists=_LISTS, max_moved=_MOST_AT_ONCE)
        return cast("int", self._line.script(_GATHER, names, args)) if names else 0

    def _names_of(self, models: tuple[str, ...]) -> tuple[str, ...]:
        """The same hundreds of keys every second, so they are cached."""
        if self._names[0] != models:
            self._names = models, tuple(chain.from_iterable(map(self._names_of_one, models)))
        return self._names[1]

    def _names_of_one(self, model: str) -> Iterator[str]:
        yield self._keys.bell(model)
        for queue in self._keys.queues(model):
            yield from (queue, *self._keys.priorities(queue))

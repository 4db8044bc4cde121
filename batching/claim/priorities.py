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
from config.redis import Call, Line, Script
from config.tiers import TIERS

_MOST_AT_ONCE = 1000
_LISTS = len(Shard.priorities(""))
_GATHER = Script(GATHER.text)


class PriorityLists:
    """The priority lists of all models. Constructing builds; call `gather` regularly, from one thread."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._line = Line(redis)
        self._keys = shard or Shard()
        self._call: tuple[tuple[str, ...], Call | None] = ((), None)

    def gather(self, models: Iterable[str]) -> int:
        """Move the messages of all `models` to their queues; returns how many. Raises RedisError."""
        call = self._call_for(tuple(models))
        return cast("int", self._line.again(call)) if call else 0

    def _call_for(self, models: tuple[str, ...]) -> Call | None:
        """The same hundreds of keys every second, so they are cached. None without models."""
        if self._call[0] != models:
            names = tuple(chain.from_iterable(map(self._names_of_one, models)))
            args = GatherArgs(queues=len(TIERS), lists=_LISTS, max_moved=_MOST_AT_ONCE)
            self._call = models, Call(_GATHER, names, args) if names else None
        return self._call[1]

    def _names_of_one(self, model: str) -> Iterator[str]:
        yield self._keys.bell(model)
        for queue in self._keys.queues(model):
            yield from (queue, *self._keys.priorities(queue))

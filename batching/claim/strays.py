"""Finds leases of a living worker that the worker knows nothing about.

A lease lives as long as its worker. But Redis may lose writes that it has confirmed: a server that is killed while its
disk is slow loses its last moment, and a failover may lose more. A batch that was settled in that time is leased again,
and nobody would ever give that lease back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import cast

from redis import Redis
from redis.exceptions import RedisError

from batching.claim.lease import model_of
from batching.claim.place_lines import PlaceLines
from batching.claim.store import Blame, give_back
from config.keys import Shard
from config.locator import failovers_of
from config.redis import Line

logger = logging.getLogger(__name__)

# Time between two looks.
LOOK_EVERY_S = 30.0
# Looks after a failover, at each beat: somebody may wait for what is in a lease that the worker has settled.
_LOOKS_AT_ONCE = 4


class Strays:
    """The strays of one worker: leases found by two looks in a row. For one thread.

    Args:
        held: returns the batches that the worker is claiming, has in hand, or is settling.
        failovers: returns how many there have been; by default those of `redis`.
    """

    def __init__(
        self,
        redis: Redis,
        worker_id: str,
        held: Callable[[], AbstractSet[str]],
        clock: Callable[[], float],
        shard: Shard | None = None,
        failovers: Callable[[], int] | None = None,
    ) -> None:
        self._failovers = failovers or partial(failovers_of, redis)
        self._known_failovers = self._failovers()
        self._looks_at_once = 0
        self._redis = redis
        self._line = Line(redis)
        self._worker_id = worker_id
        self._held = held
        self._clock = clock
        self._keys = shard or Shard()
        self._look_at = 0.0
        self._suspected: frozenset[str] = frozenset()

    def look(self) -> int:
        """Queue the requests of leases that were found twice again, if it is time to look; returns how many.

        Raises:
            RedisError: the next look tries again.
        """
        now = self._clock()
        if self._failovers() != self._known_failovers:
            self._known_failovers, self._looks_at_once = self._failovers(), _LOOKS_AT_ONCE
        if self._looks_at_once:
            self._looks_at_once -= 1
        elif now < self._look_at:
            return 0
        self._look_at = now + LOOK_EVERY_S
        leased = cast("set[bytes]", self._redis.smembers(self._keys.leases(self._worker_id)))
        # Read after Redis, so that batches claimed in between are not taken for strays.
        found = frozenset(each.decode() for each in leased) - self._held()
        strays, self._suspected = found & self._suspected, found
        return sum(map(self._return, strays))

    def _return(self, batch_id: str) -> int:
        header = cast("bytes | None", self._redis.lindex(self._keys.lease(batch_id), 0))
        if header is None:
            self._redis.srem(self._keys.leases(self._worker_id), batch_id)
            return 0
        model = model_of(header)
        # It is not known whether they have run.
        returned = max(0, give_back(self._line, self._keys, self._worker_id, model, batch_id, Blame.ATTEMPT))
        if returned:
            logger.warning("Redis lost the lease of batch %s; its %d requests were queued again", batch_id, returned)
        return returned


class ShardedStrays:
    """The strays of one worker in all places that answer."""

    def __init__(
        self, lines: PlaceLines, worker_id: str, held: Callable[[], AbstractSet[str]], clock: Callable[[], float]
    ) -> None:
        self._lines = lines
        self._of = [Strays(place.redis, worker_id, held, clock, place.keys) for place in lines.places]

    def look(self) -> int:
        """`Strays.look` in each place.

        Raises:
            RedisError: of a place; it was looked at in the others.
        """
        failure: RedisError | None = None
        returned = 0
        for number, strays in enumerate(self._of):
            if self._lines.is_there(number):
                try:
                    returned += strays.look()
                except RedisError as error:
                    self._lines.note({number: [error]})
                    failure = error
        if failure is not None:
            raise failure
        return returned

"""Leases in a living worker's name of which it knows nothing.

A lease has no clock: it is as alive as its worker. But Redis may remember less than it has said. One that is killed
while its disk is slow forgets its last moment, and a batch that was settled then is leased again; a failover may
forget more. Nobody would ever give such a lease back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import cast

from redis import Redis

from batching.claim.store import Blame, give_back
from config.keys import Shard
from config.redis import Line

logger = logging.getLogger(__name__)

# Between two looks.
LOOK_EVERY_S = 30.0


class Strays:
    """Found by two looks in a row; for one thread.

    Args:
        held: the batches that the worker has asked for, has in hand, or settles.
    """

    def __init__(
        self,
        redis: Redis,
        worker_id: str,
        held: Callable[[], AbstractSet[str]],
        clock: Callable[[], float],
        shard: Shard | None = None,
    ) -> None:
        self._redis = redis
        self._line = Line(redis)
        self._worker_id = worker_id
        self._held = held
        self._clock = clock
        self._keys = shard or Shard()
        self._look_at = 0.0
        self._suspected: frozenset[str] = frozenset()

    def look(self) -> int:
        """Queue again what has been found twice, if it is time to look; how many requests that was.

        Raises:
            RedisError: it is looked for again next time.
        """
        now = self._clock()
        if now < self._look_at:
            return 0
        self._look_at = now + LOOK_EVERY_S
        leased = cast("set[bytes]", self._redis.smembers(self._keys.leases(self._worker_id)))
        # Asked after Redis: what has been claimed in between is not among those.
        found = frozenset(each.decode() for each in leased) - self._held()
        strays, self._suspected = found & self._suspected, found
        return sum(map(self._return, strays))

    def _return(self, batch_id: str) -> int:
        header = cast("bytes | None", self._redis.lindex(self._keys.lease(batch_id), 0))
        if header is None:
            self._redis.srem(self._keys.leases(self._worker_id), batch_id)
            return 0
        model = header.decode().partition("\n")[2]
        # Whether they have run nobody knows.
        returned = max(0, give_back(self._line, self._keys, self._worker_id, model, batch_id, Blame.ATTEMPT))
        if returned:
            logger.warning("Redis lost the lease of batch %s; its %d requests were queued again", batch_id, returned)
        return returned

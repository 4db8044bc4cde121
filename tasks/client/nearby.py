"""The workers that share memory with this process: none, some, or all that there are.

bunch:workers, at most once a second ──ids──▶ their marks in the folder of shared memory ──▶ Nearby
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import cast

from gevent.lock import BoundedSemaphore
from redis import Redis
from redis.exceptions import RedisError

from batching.blobs.local_files import LocalFiles
from config.keys import Shard

_LOOK_EVERY_S = 1.0


class Nearby(Enum):
    NONE = "none"
    SOME = "some"
    ALL = "all"


class NearbyWorkers:
    """What `look` found, kept for a second. `files` are those of this process."""

    def __init__(
        self, redis: Redis, keys: Shard, files: LocalFiles, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._files = files
        self._clock = clock
        self._found = Nearby.NONE
        self._until = -1.0
        # Whoever comes meanwhile waits for what is found, or would go by what was true some time ago.
        self._looking = BoundedSemaphore()

    def look(self) -> Nearby:
        """The workers nearby; none while Redis does not say which there are."""
        if self._files.is_open and self._clock() >= self._until:
            with self._looking:
                if self._clock() >= self._until:
                    self._found = self._looked()
                    self._until = self._clock() + _LOOK_EVERY_S
        return self._found

    def _looked(self) -> Nearby:
        try:
            workers = cast("list[bytes]", self._redis.zrange(self._keys.workers(), 0, -1))
        except RedisError:
            return Nearby.NONE
        seen = self._files.seen_by([each.decode() for each in workers])
        if not seen:
            return Nearby.NONE
        return Nearby.ALL if seen == len(workers) else Nearby.SOME

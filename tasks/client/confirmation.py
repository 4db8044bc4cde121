"""`BUNCH_DURABILITY=replica`: nothing is promised to a caller before a replica has it.

    caller ──its key──▶ [ … ] ──EXISTS each, SET, WAIT 1──▶ a replica has the SET, and so all that was written before
                                                          └ none within a second, or the key is gone: 503

Replication is one stream in order. So one small write and one WAIT on any connection confirm everything that the server
has written until then, for all who ask at that time (WAIT itself counts only what its own connection has written). That
the server still has the key tells that it is the one that took the request: another one, after a failover, may lack it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import gevent
from gevent.event import AsyncResult
from redis import Redis
from redis.exceptions import RedisError

from config.keys import Shard
from tasks.errors import BackendUnavailable

logger = logging.getLogger(__name__)

_WAIT_MS = 1000
_MARK_MS = 1000


class Confirmation:
    """Confirms keys for the greenlets of one process, all that gather at a time in one call."""

    def __init__(self, redis: Redis, keys: Shard, process_id: str) -> None:
        self._redis = redis
        self._mark = keys.flush(f"{process_id}:confirmed")
        self._asked: list[tuple[str, AsyncResult]] = []
        self._asking = False

    def confirm(self, key: str) -> None:
        """Return once a replica has the key as the server has it now.

        Raises:
            BackendUnavailable: no replica has, within a second, or there is no such key.
        """
        confirmed: AsyncResult = AsyncResult()
        self._asked.append((key, confirmed))
        if not self._asking:
            self._asking = True
            gevent.spawn(self._run)
        if not confirmed.get():
            raise BackendUnavailable("no replica of the queue has confirmed it; try again shortly")

    def _run(self) -> None:
        try:
            while self._asked:
                batch, self._asked = self._asked, []
                try:
                    verdicts = self._round([key for key, _ in batch])
                except Exception:
                    # Whoever asked must be told something.
                    logger.exception("could not have %d keys confirmed by a replica", len(batch))
                    verdicts = [False] * len(batch)
                for (_, confirmed), verdict in zip(batch, verdicts, strict=True):
                    confirmed.set(verdict)
        finally:
            self._asking = False

    def _round(self, keys: Sequence[str]) -> list[bool]:
        pipeline: Any = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.exists(key)
        pipeline.set(self._mark, 1, px=_MARK_MS)
        pipeline.wait(1, _WAIT_MS)
        try:
            *there, _, replicas = pipeline.execute()
        except (RedisError, OSError) as error:
            logger.warning("could not have %d keys confirmed by a replica: %s", len(keys), error)
            return [False] * len(keys)
        if replicas < 1:
            logger.warning("no replica has confirmed %d keys within %d ms", len(keys), _WAIT_MS)
        return [bool(each) and replicas >= 1 for each in there]

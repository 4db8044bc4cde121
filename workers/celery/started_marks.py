"""STARTED for the requests of plain Celery clients.

Our own frontend's requests have a state from the moment they are queued, and the claim script moves it on. A plain
client's have none, and then Celery's `revoke` takes for waiting what the model is computing already: each worker that
hears of it writes REVOKED over an answer that is about to come (`celery.worker.control._revoke`).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from batching.request import Request
from config.keys import RESULT_PREFIX

logger = logging.getLogger(__name__)


class StartedMarks:
    """One round trip for a batch that has such requests in it, none for any other."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._worker = {"hostname": socket.gethostname(), "pid": os.getpid()}

    def __call__(self, requests: Sequence[Request]) -> None:
        theirs = [each for each in requests if not each.enqueued_ms and each.result_ttl_ms]
        if not theirs:
            return
        pipeline = self._redis.pipeline(transaction=False)
        for each in theirs:
            # Never over a state that is there: it may be an end.
            pipeline.set(RESULT_PREFIX + each.id, self._state(each.id), px=each.result_ttl_ms, nx=True)
        try:
            pipeline.execute()
        except RedisError as error:
            logger.debug("tasks were not marked as STARTED; they run all the same: %s", error)

    def _state(self, task_id: str) -> bytes:
        return msgspec.json.encode(
            {
                "status": "STARTED",
                "result": self._worker,
                "traceback": None,
                "children": [],
                "date_done": None,
                "task_id": task_id,
            }
        )

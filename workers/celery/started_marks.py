"""Writes STARTED for the requests of plain Celery clients.

Requests of our frontend have a state from when they are queued, and the claim script updates it. Requests of a plain
client have none, and without one Celery's `revoke` considers a running task as waiting: each worker that gets the
command writes REVOKED over the result that is about to come (`celery.worker.control._revoke`).
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
    """One round trip for a batch with such requests, none for any other batch."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._worker = {"hostname": socket.gethostname(), "pid": os.getpid()}

    def __call__(self, requests: Sequence[Request]) -> None:
        theirs = [each for each in requests if not each.enqueued_ms and each.result_ttl_ms]
        if not theirs:
            return
        pipeline = self._redis.pipeline(transaction=False)
        for each in theirs:
            # Never over an existing state: it may be the result.
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

"""The Celery result backend of a worker, which never replaces the result of a frontend's request.

Celery stores the states of a chain's later steps and of a chord this way
(`celery.backends.base.Backend.mark_as_failure`). Their ids come from the client's message, and may be any.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.backends.redis import RedisBackend

from tasks.protocol.results import is_of_a_frontend

logger = logging.getLogger(__name__)

BACKEND = f"{__name__}:GuardedBackend"


class GuardedBackend(RedisBackend):
    """Applies the rule of `batching/lua/finish.lua` to states that Celery stores."""

    def _store_result(self, task_id: str, result: Any, state: str, *args: Any, **options: Any) -> Any:
        if is_of_a_frontend(self.get(self.get_key_for_task(task_id)) or b""):
            logger.error("%s of %s was not stored: the id belongs to a request of a frontend", state, task_id)
            return result
        return super()._store_result(task_id, result, state, *args, **options)

"""Celery's `revoke` and `terminate`, extended in all of our workers: they also tell callers who wait on a connection.

Celery writes the state, publishes it on the channel of the task id, and remembers the id. That reaches Celery clients,
and a worker that claims the message later, but not a frontend, which listens on a channel of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from celery import bootsteps
from celery.utils.functional import maybe_list
from celery.worker import control
from celery.worker.control import Panel
from redis.exceptions import RedisError

from config.redis import connect
from tasks.client.cancel import Canceller

Reply = dict[str, Any]
# Task ids that frontends make. Nobody waits on a connection for any other, and scripts write them into JSON as they
# are.
_OURS = re.compile(r"[0-9a-f-]{36}")


class RevokeStep(bootsteps.Step):
    """A step of the worker's blueprint; `app.bunch_settings` says which Redis to use."""

    def create(self, worker: Any) -> None:
        settings = worker.app.bunch_settings
        canceller = Canceller(connect(settings.redis_url))
        for name, command in (("revoke", control.revoke), ("terminate", control.terminate)):
            Panel.data[name] = _telling(command, canceller, settings.request_timeout_ms)


def _telling(command: Callable[..., Reply], canceller: Canceller, longest_ms: int) -> Callable[..., Reply]:
    def tell_and_revoke(state: Any, task_id: str | Iterable[str], **options: Any) -> Reply:
        # Before Celery writes REVOKED over PENDING: then nobody could tell any more whether a caller was told.
        for each in {each for each in maybe_list(task_id) or () if _OURS.fullmatch(str(each))}:
            try:
                canceller.cancel(each, longest_ms)
            except RedisError as error:
                control.logger.warning("could not tell the caller of %s that its task was revoked: %s", each, error)
        return command(state, task_id=task_id, **options)

    return tell_and_revoke

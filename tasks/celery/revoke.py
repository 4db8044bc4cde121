"""Celery's `revoke` and `terminate`, extended in all of our workers: they also tell callers who wait on a connection.

Celery writes the state, publishes it on the channel of the task id, and remembers the id. That reaches Celery clients,
and a worker that claims the message later, but not a frontend, which listens on a channel of its own. Nor does Celery
know of shards: it leaves states of their requests at home, where nobody looks.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from celery import bootsteps
from celery.utils.functional import maybe_list
from celery.worker import control
from celery.worker.control import Panel
from redis.exceptions import RedisError

from config.shards import Places, open_places
from tasks.client.cancel import Canceller
from tasks.protocol.ids import place_of

Reply = dict[str, Any]
# Task ids that frontends make. Nobody waits on a connection for any other, and scripts write them into JSON as they
# are.
_OURS = re.compile(r"[0-9a-f-]{36}")


class RevokeStep(bootsteps.Step):
    """A step of the worker's blueprint; `app.bunch_settings` says which Redis to use."""

    def create(self, worker: Any) -> None:
        settings = worker.app.bunch_settings
        places = open_places(settings)
        for name, command in (("revoke", control.revoke), ("terminate", control.terminate)):
            Panel.data[name] = _telling(command, places, settings.request_timeout_ms)


def _telling(command: Callable[..., Reply], places: Places, longest_ms: int) -> Callable[..., Reply]:
    cancellers = {place: Canceller(place.redis, place.keys) for place in places}

    def tell_and_revoke(state: Any, task_id: str | Iterable[str], **options: Any) -> Reply:
        ours = {each for each in maybe_list(task_id) or () if _OURS.fullmatch(str(each))}
        # Before Celery writes REVOKED over PENDING: then nobody could tell any more whether a caller was told.
        for each in ours:
            try:
                cancellers[place_of(places, each)].cancel(each, longest_ms)
            except RedisError as error:
                control.logger.warning("could not tell the caller of %s that its task was revoked: %s", each, error)
        reply = command(state, task_id=task_id, **options)
        _remove_strays(places, [each for each in ours if place_of(places, each) is not places.home])
        return reply

    return tell_and_revoke


def _remove_strays(places: Places, task_ids: list[str]) -> None:
    """Delete the states that Celery has written at home for requests of shards."""
    if task_ids:
        # They expire, too.
        with contextlib.suppress(RedisError):
            places.home.redis.unlink(*map(places.home.keys.result, task_ids))

"""Requests whose result is to be pushed (`callback_url`): noted before their caller is told 202.

queued ─▶ noted in Redis ─▶ 202          a greenlet waits for the outcome, and says that the callback is due
   └─ not noted: cancelled, 503          without it, a sender looks by itself, half a minute later at most
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import gevent
from msgspec.structs import replace
from redis.exceptions import RedisError

from config.allowed_hosts import CallbackHosts, ForbiddenTarget
from config.settings import Settings
from config.shards import Places
from tasks.callbacks.store import KEEP_MS, CallbackStore
from tasks.client.pending import Pending
from tasks.client.sharded_client import AnyClient
from tasks.client.submission import Submission
from tasks.errors import BackendUnavailable, BunchError
from tasks.protocol.results import FINISHED
from webapp.errors import ApiError

logger = logging.getLogger(__name__)


class Callbacks:
    """The callbacks of one frontend process."""

    def __init__(self, settings: Settings, places: Places, client: AnyClient) -> None:
        self._hosts = CallbackHosts(settings.callback_hosts)
        self._store = CallbackStore(places)
        self._client = client

    def require(self, url: str, *, waits: bool) -> None:
        """Raise ApiError INVALID_INPUT unless that URL may be called, and the caller does not wait."""
        if waits:
            raise ApiError(
                "INVALID_INPUT", "callback_url: send Prefer: respond-async with it; this call has its answer"
            )
        try:
            self._hosts.target(url)
        except ForbiddenTarget as error:
            raise ApiError("INVALID_INPUT", f"callback_url: {error}") from None

    @staticmethod
    def kept(submission: Submission) -> Submission:
        """The same request, whose result is kept until its callback was tried for long enough."""
        return replace(submission, keep_ms=KEEP_MS)

    def noting(self, submission: Submission, url: str) -> Callable[[Pending], str]:
        """`Client.receipt` for a request with a callback, which is then noted. Raises BunchError as that does, and
        BackendUnavailable.
        """

        def receipt(pending: Pending) -> str:
            task_id = self._client.receipt(pending)
            try:
                self._store.owe(task_id, url, submission.model, submission.tier, submission.timeout_s, time.time())
                self._client.confirm(self._store.name(task_id))
            except (RedisError, BackendUnavailable) as error:
                # With an Idempotency-Key it may be one that was promised to an earlier call, and a later one finds it.
                if not pending.runs_on:
                    gevent.spawn(self._cancel, task_id)
                raise BackendUnavailable("the callback could not be noted; try again shortly") from error
            gevent.spawn(self._tell, task_id, submission.timeout_s)
            return task_id

        return receipt

    def _tell(self, task_id: str, timeout_s: float) -> None:
        try:
            reply = self._client.result(task_id, timeout_s + 1.0)
            if reply is not None and reply.status in FINISHED:
                self._store.finished(task_id)
        except (BunchError, RedisError) as error:
            logger.debug("a sender will find the outcome of %s by itself: %s", task_id, error)

    def _cancel(self, task_id: str) -> None:
        try:
            self._client.cancel(task_id)
        except BunchError as error:
            logger.debug("could not cancel %s: %s", task_id, error)

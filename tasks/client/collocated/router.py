"""The reply router of a process that computes its own answers: no subscription, and nothing can get lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import gevent
import msgspec
from gevent import get_hub
from redis import Redis

from batching.memory.store import MemoryStore, Replies
from tasks.client.pending import Pending
from tasks.client.router import Router
from tasks.protocol.results import Reply, decode_reply

logger = logging.getLogger(__name__)


class LocalRouter(Router):
    """Delivers what `store` tells to the greenlets of this process."""

    def __init__(
        self, redis: Redis, process_id: str, store: MemoryStore, *, on_hang_up: Callable[[Sequence[str]], object]
    ) -> None:
        super().__init__(redis, process_id, on_hang_up=on_hang_up)
        self._store = store
        self.connected = True
        store.on_replies = self._told

    def start(self) -> None:
        self._greenlets = [gevent.spawn(self._sweep)]

    def watch(self, task_id: str, timeout_s: float) -> Pending:
        pending = super().watch(task_id, timeout_s)
        # It may have ended since its state was read.
        self._look_up([task_id])
        return pending

    def _told(self, replies: Replies) -> None:
        get_hub().loop.run_callback(self._deliver_raw, replies)

    def _deliver_raw(self, replies: Replies) -> None:
        """Runs in the hub. Results that nobody waits for now are not even decoded."""
        self._deliver_in_hub(
            [_decoded(raw, key) for key, raw in replies if key in self._pending or key in self._watched]
        )

    def _look_up(self, task_ids: Sequence[str]) -> None:
        found = ((each, self._store.states.get(each)) for each in task_ids)
        self._told([(key, raw) for key, raw in found if raw is not None])


def _decoded(raw: bytes, task_id: str) -> Reply:
    try:
        return decode_reply(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        logger.error("the result of %s cannot be read: %r", task_id, error)
        return Reply(task_id, "FAILURE")

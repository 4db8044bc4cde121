"""The client of a frontend whose queues are in several shards: a `Client` for each place, with a subscription and an
outbox of its own. A shard that is down, or slow, holds up nobody in another.

    submission ─▶ owner ────────────────────▶ its shard: quotas, fairness and repeats stay one script's
                  none, an Idempotency-Key ─▶ the key's
                  none, answers are shared ─▶ the question's, or another one while that is away
                  none of these ────────────▶ the less busy of two that take requests, for all until its next flush
    task id ────▶ the shard that it tells, else the home, where plain Celery clients' requests are
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar
from zlib import crc32

import gevent
from redis.exceptions import RedisError

from batching.blobs.store import Usage
from config.settings import Settings
from config.shards import Places
from tasks.client.client import Client
from tasks.client.pending import Pending
from tasks.client.router import MAX_KEPT_BYTES, shutting_down
from tasks.client.submission import Submission
from tasks.errors import BackendUnavailable, BunchError
from tasks.fleet.all_places import PATIENCE_S
from tasks.protocol.caller import Caller
from tasks.protocol.ids import new_id, newest, shard_of
from tasks.protocol.outgoing import Outgoing
from tasks.protocol.results import Reply

_T = TypeVar("_T")
# A flush that takes longer makes a request go to another shard: where any will do, and where one is better.
_LATE_S = 0.1
_GONE_S = 1.0


class ShardedClient:
    """`Client`, over all places."""

    def __init__(
        self, settings: Settings, places: Places, on_answered: Callable[[Outgoing], None] = lambda out: None
    ) -> None:
        self._places = places
        self.name = new_id()
        kept_bytes = MAX_KEPT_BYTES // len(places.shards)
        self._home, *self._shards = (
            Client(
                settings,
                place.redis,
                place.keys,
                on_answered,
                number=place.number,
                name=self.name,
                max_kept_bytes=kept_bytes,
            )
            for place in (places.home, *places.shards)
        )
        self._all = (*self._shards, self._home)
        # Equal requests are looked for among those of these models.
        self._asked = {name for name, model in settings.models.items() if model.collapses}
        self._current = self._shards[0]

    @property
    def waiting(self) -> int:
        return sum(each.waiting for each in self._all)

    @property
    def resendable_bytes(self) -> int:
        return sum(each.resendable_bytes for each in self._all)

    @property
    def connected(self) -> bool:
        """True if the replies of every place are heard."""
        return all(each.connected for each in self._all)

    def start(self) -> None:
        for each in self._all:
            each.start()

    def stop(self) -> None:
        for each in self._all:
            each.stop()

    def refuse(self, refusal: Callable[[], BunchError] = shutting_down) -> None:
        for each in self._all:
            each.refuse(refusal)

    def submit(self, submission: Submission) -> Pending:
        return self._for_new(submission).submit(submission)

    def queued_bytes(self, submission: Submission) -> int:
        return self._home.queued_bytes(submission)

    def blob_usage(self) -> Usage:
        """Those of the places that answer in time."""
        asked = [gevent.spawn(_outcome, each.blob_usage) for each in self._all]
        gevent.joinall(asked, timeout=PATIENCE_S)
        found = [each.value for each in asked if isinstance(each.value, Usage)]
        return Usage(*map(sum, zip(*found, strict=True))) if found else Usage(0, 0, 0)

    @property
    def shared_bytes(self) -> int:
        # All have the same folder.
        return self._home.shared_bytes

    def drop(self, pending: Pending) -> None:
        self._of(pending.task_id).drop(pending)

    def wait(self, pending: Pending) -> Reply:
        return self._of(pending.task_id).wait(pending)

    def receipt(self, pending: Pending) -> str:
        return self._of(pending.task_id).receipt(pending)

    def confirm(self, key: str) -> None:
        """With `replica`, return once a replica has this key of the home. Raises BackendUnavailable."""
        self._home.confirm(key)

    def result(
        self, task_id: str, wait_s: float = 0.0, deadline: float = float("inf"), *, as_bytes: bool = False
    ) -> Reply | None:
        return self._of(task_id).result(task_id, wait_s, deadline, as_bytes=as_bytes)

    def forget(self, task_id: str) -> None:
        self._of(task_id).forget(task_id)

    def cancel(self, task_id: str) -> str:
        return self._of(task_id).cancel(task_id)

    def charge(self, caller: Caller) -> float:
        return self._for_owner(caller.owner).charge(caller)

    def burst_of(self, caller: Caller) -> int | None:
        return self._home.burst_of(caller)

    def task_of(self, request_id: str, owner: str = "") -> str:
        """The task id for the owner's own request id; the given id itself if there is none.

        Raises:
            BackendUnavailable: a shard that may know it cannot be reached.
        """
        if owner:
            return self._for_owner(owner).task_of(request_id, owner)
        if shard_of(request_id) is not None:
            return request_id
        asked = [gevent.spawn(_outcome, partial(each.named, request_id)) for each in self._all]
        gevent.joinall(asked)
        found = [each.value for each in asked]
        # Two requests with one name may be in two shards.
        known = newest(each for each in found if isinstance(each, tuple))
        failed = [each for each in found if isinstance(each, BackendUnavailable)]
        if failed and not known:
            raise failed[0]
        return known or request_id

    def _of(self, task_id: str) -> Client:
        number = self._places.numbered(shard_of(task_id)).number
        return self._home if number is None else self._shards[number]

    def _for_owner(self, owner: str) -> Client:
        number = self._places.for_owner(owner).number
        assert number is not None
        return self._shards[number]

    def _for_new(self, submission: Submission) -> Client:
        owner = submission.caller.owner
        if owner:
            return self._for_owner(owner)
        if submission.idempotency_key:
            return self._shards[crc32(submission.idempotency_key.encode()) % len(self._shards)]
        if submission.model in self._asked and not submission.fresh:
            asked = crc32(submission.parameters, crc32(submission.input))
            first = self._shards[asked % len(self._shards)]
            # A frontend that starts hears nothing yet, and its questions are the same as those of others.
            if not first.is_troubled(_GONE_S, _GONE_S):
                return first
            # Elsewhere it may be computed once more than needed; here it would not be.
            there = self._untroubled(_GONE_S)
            return there[asked // len(self._shards) % len(there)]
        # One flush is one script, however many requests it has; so those of one moment stay together.
        if not self._current.has_unsent or self._current.is_troubled(_LATE_S):
            one, other = random.choices(self._shards, k=2)
            if one.is_troubled(_LATE_S) or other.is_troubled(_LATE_S):
                # Nobody waits in a shard that refuses everything, so it would seem the less busy one.
                one, other = random.choices(self._untroubled(_LATE_S), k=2)
            self._current = one if one.waiting <= other.waiting else other
        return self._current

    def _untroubled(self, late_s: float) -> Sequence[Client]:
        return [each for each in self._shards if not each.is_troubled(late_s)] or self._shards


AnyClient = Client | ShardedClient


def make_client(
    settings: Settings, places: Places, on_answered: Callable[[Outgoing], None] = lambda out: None
) -> AnyClient:
    """The client of a frontend, for as many shards as there are."""
    if places.are_many:
        return ShardedClient(settings, places, on_answered)
    return Client(settings, places.home.redis, on_answered=on_answered)


def _outcome(call: Callable[[], _T]) -> _T | BackendUnavailable | RedisError:
    try:
        return call()
    except (BackendUnavailable, RedisError) as error:
        return error

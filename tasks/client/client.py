"""The interface that the frontend uses: submit a request, wait for its answer, cancel it, read its state.

One `Client` per process, for gevent: its greenlets share one outbox and one router.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import gevent
from redis import Redis
from redis.exceptions import RedisError

from batching.blobs.reference import BlobRef, is_reference
from batching.blobs.store import Usage
from batching.policy import Shed
from config.keys import Shard
from config.redis_errors import Meaning, meaning_of
from config.settings import Settings
from tasks.client.addressing import Addressing
from tasks.client.admission_args import AdmissionArgs
from tasks.client.cancel import Canceller
from tasks.client.confirmation import Confirmation
from tasks.client.dedup import Repeated
from tasks.client.outbox import Outbox, Receipt
from tasks.client.payloads import PayloadSender
from tasks.client.pending import Pending
from tasks.client.resend import LenientArgs
from tasks.client.router import MAX_KEPT_BYTES, Router, shutting_down
from tasks.client.submission import Submission, scoped
from tasks.errors import BackendUnavailable, BunchError, InvalidInput, RateLimited
from tasks.observability.metrics import CACHE_HITS
from tasks.protocol.answers import checked
from tasks.protocol.caller import Caller
from tasks.protocol.ids import new_id, owned_id, sharded_id, until_ms
from tasks.protocol.outgoing import MessageWriter, Outgoing
from tasks.protocol.results import FINISHED, Reply, decode_reply
from tasks.protocol.seal import seal_of
from tasks.script_args import CHARGE, HANG_UP, ChargeArgs, HangUpArgs, HangUpKeys, QuotaKeys

logger = logging.getLogger(__name__)

_TAKE_BACK_EVERY_S = 0.5
_HELD_PAUSE_S = 0.1
# Callers get this text only, since the error names the server's address.
_NO_QUEUE = "the queue is not reachable; try again shortly"
_RESERVED = 'input: an object with "$blob" alone stands for a payload of this server, and cannot be sent'
_NO_RESULTS = "the result store is not reachable; try again shortly"


class Client:
    """The constructor opens nothing; `start` subscribes and starts flushing. Call `start` after any fork.

    `on_answered` is called for each request that was answered from the cache, which no worker sees. `number`: of its
    shard, where there are several, which its ids tell. `name`: of the process, by default a new one.
    """

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        shard: Shard | None = None,
        on_answered: Callable[[Outgoing], None] = lambda out: None,
        *,
        number: int | None = None,
        name: str = "",
        max_kept_bytes: int = MAX_KEPT_BYTES,
    ) -> None:
        self._settings = settings
        self._on_answered = on_answered
        self._redis = redis
        self._keys = shard or Shard()
        self._number = number
        self._max_kept_bytes = max_kept_bytes
        self.name = name = name or new_id()
        self.router = self._make_router(redis, name)
        self._writer = MessageWriter(self.router.channel, seal_of(settings))
        self._inline_bytes = settings.inline_bytes
        self._payloads = PayloadSender.of(
            settings, redis, self._keys, self.router.settle, self._post, self.router.kept, self._refusal
        )
        self.outbox = self._make_outbox(settings, redis, name)
        self._hang_up = redis.register_script(HANG_UP.text)
        self._canceller = Canceller(redis, self._keys)
        self._charge = redis.register_script(CHARGE.text)
        self._addressing = Addressing(settings, self._keys)
        self._quotas = self._addressing.quotas
        self._hold_s = settings.failover_wait_s
        self._confirmation = Confirmation(redis, self._keys, name) if settings.durability == "replica" else None

    def _make_router(self, redis: Redis, name: str) -> Router:
        return Router(
            redis,
            name,
            self._keys,
            on_hang_up=self._take_back_later,
            on_new_server=self._send_again,
            max_kept_bytes=self._max_kept_bytes,
        )

    def _make_outbox(self, settings: Settings, redis: Redis, name: str) -> Outbox:
        return Outbox(
            redis,
            name,
            AdmissionArgs(settings, self._keys),
            self.router.settle,
            self._keys,
            self._take_back_later,
            self._answered,
            keep=self.router.keep,
            kept=self.router.kept,
            lenient=LenientArgs(settings, self._keys),
            hold_s=settings.failover_wait_s,
            direct={name for name, model in settings.models.items() if model.direct},
            payloads=self._payloads,
        )

    def _send_again(self) -> None:
        self.outbox.send_again()

    def start(self) -> None:
        self.router.start()
        self._payloads.start(self.router.channel)
        self.outbox.start()

    def stop(self) -> None:
        self._payloads.stop()
        self.outbox.stop()
        self.router.stop()

    @property
    def waiting(self) -> int:
        """The number of callers that wait."""
        return self.router.size

    @property
    def resendable_bytes(self) -> int:
        """The bytes that are kept to send requests again after a failover."""
        return self.router.kept_bytes

    @property
    def connected(self) -> bool:
        """True if replies are heard."""
        return self.router.connected

    @property
    def has_unsent(self) -> bool:
        """True if requests wait for the next flush."""
        return self.outbox.has_unsent

    def is_troubled(self, late_s: float, starting_s: float = 0.0) -> bool:
        """Return whether replies are not heard, once it has started, or the queue takes nothing within `late_s`."""
        return self.router.is_deaf(starting_s) or self.outbox.is_troubled(late_s)

    def refuse(self, refusal: Callable[[], BunchError] = shutting_down) -> None:
        """Refuse all pending and further requests, see `Router.refuse`."""
        self.router.refuse(refusal)

    def drop(self, pending: Pending) -> None:
        """Forget a pending request that nobody waits for any more."""
        self.router.forget(pending)

    def submit(self, submission: Submission) -> Pending:
        """Put one request into the outbox, a large input beside the queue before; returns at once."""
        owner = submission.caller.owner
        task_id = new_id() if self._number is None else sharded_id(new_id(), self._number)
        if owner:
            task_id = owned_id(task_id, owner)
        input = submission.input
        beside = len(input) > self._inline_bytes and self._payloads.takes(submission)
        sent = None if beside else self._message(task_id, submission, submission.timeout_s)
        # Only once nothing can fail any more, since after a failure nobody would forget it.
        key = submission.idempotency_key
        pending = self.router.expect(task_id, submission.timeout_s, None if key else submission.hung_up)
        pending.runs_on = bool(key)
        pending.is_sole = submission.waits and not (submission.request_id or self._addressing.may_repeat(submission))
        pending.takes_bytes = submission.takes_bytes
        # Most inputs are strings, which need not be looked into.
        if input[:1] != b'"' and not submission.binary and is_reference(input):
            self.router.settle(pending, InvalidInput(_RESERVED))
        elif sent is None:
            self._payloads.send(submission, pending)
        else:
            self.outbox.put(*sent, pending, receipt=not submission.waits)
        return pending

    def _post(self, pending: Pending, submission: Submission, blob: BlobRef) -> None:
        """The input lies beside the queue: put its message into the outbox."""
        left_s = pending.deadline - time.monotonic()
        sent = self._message(pending.task_id, submission, left_s, blob)
        self.outbox.put(*sent, pending, receipt=not submission.waits)

    def _refusal(self, pending: Pending, submission: Submission) -> BunchError | None:
        """Why a request would not be admitted now, as far as that is known without its input. Raises RedisError."""
        out = self._addressing.asking(pending.task_id, submission, pending.deadline - time.monotonic())
        refusal = self.outbox.preview.refusal(out, pending)
        # A repeat needs no place in a queue; it counts against its caller's rate.
        counts = isinstance(refusal, RateLimited) and refusal.reason == Shed.RATE.value
        return refusal if counts or not self._addressing.may_repeat(submission) else None

    def _message(
        self, task_id: str, submission: Submission, timeout_s: float, blob: BlobRef | None = None
    ) -> tuple[Outgoing, bytes]:
        out = self._addressing.of(task_id, submission, timeout_s, blob)
        return out, self._writer.rest(out, time.time())

    def wait(self, pending: Pending) -> Reply:
        """Wait for the answer to a submitted request.

        Raises:
            BunchError: the outcome, if it is not an output; DeadlineExceeded if there is none in time.
        """
        try:
            reply = pending.wait()
        finally:
            self.router.forget(pending)
        if isinstance(reply, Repeated):
            return checked(self._outcome_of(reply, pending))
        if pending.runs_on and isinstance(reply, Reply):
            # A caller that repeats the request must get this answer again.
            self._confirm(pending.task_id)
        return self._payloads.whole(checked(reply), sole=pending.is_sole, as_bytes=pending.takes_bytes)

    def _outcome_of(self, first: Repeated, pending: Pending) -> Reply | None:
        """Wait for a request that any process may have submitted; None if it has not ended by `pending`'s deadline."""
        left_s = pending.deadline - time.monotonic()
        reply = self.result(first.task_id, left_s, pending.deadline, as_bytes=pending.takes_bytes)
        return reply if reply is not None and reply.status in FINISHED else None

    def receipt(self, pending: Pending) -> str:
        """Return the task id once the queue has the request. Raises BunchError if it was refused."""
        try:
            reply = pending.wait()
        finally:
            self.router.forget(pending)
        if isinstance(reply, Repeated):
            self._confirm(reply.task_id)
            return reply.task_id
        if not isinstance(reply, Receipt | Reply):
            checked(reply)
        # A reply may overtake the receipt: then the queue has had the request, whatever its outcome.
        try:
            self._confirm(pending.task_id)
        except BackendUnavailable:
            if not pending.runs_on:
                self._take_back_later([pending.task_id])
            raise
        return pending.task_id

    def confirm(self, key: str) -> None:
        """With `replica`, return once a replica has this Redis key as the server has it. Raises BackendUnavailable."""
        if self._confirmation is not None:
            self._confirmation.confirm(key)

    def _confirm(self, task_id: str) -> None:
        self.confirm(self._keys.result(task_id))

    def result(
        self, task_id: str, wait_s: float = 0.0, deadline: float = math.inf, *, as_bytes: bool = False
    ) -> Reply | None:
        """The stored state of a task, after waiting at most `wait_s` for it to finish; None for an unknown id. While
        Redis fails over it is held, but not beyond `deadline` (monotonic). `as_bytes`: a large output that is bytes
        comes as a `BytesReply`.

        Raises:
            BackendUnavailable: Redis cannot be reached, or no replica has confirmed an outcome.
        """
        reply = self._stored(task_id, deadline)
        if reply is not None and reply.status not in FINISHED and wait_s > 0:
            pending = self.router.watch(task_id, wait_s)
            try:
                reply = cast("Reply | None", pending.wait()) or self._stored(task_id, deadline)
            finally:
                self.router.forget(pending)
        if reply is not None and reply.status in FINISHED:
            self._confirm(task_id)
            reply = self._payloads.whole(reply, as_bytes=as_bytes)
        return reply

    def queued_bytes(self, submission: Submission) -> int:
        """The bytes of a request in the queue."""
        return self._payloads.queued_bytes(submission)

    def blob_usage(self) -> Usage:
        """The payloads beside the queue. Raises RedisError."""
        return self._payloads.usage()

    @property
    def shared_bytes(self) -> int:
        return self._payloads.shared_bytes

    def forget(self, task_id: str) -> None:
        """Delete the stored result of a task, and what lies beside it. Raises BackendUnavailable."""
        self._payloads.forget(task_id, self._held(lambda: self._redis.getdel(self._keys.result(task_id)), _NO_RESULTS))

    def cancel(self, task_id: str) -> str:
        """Cancel a request that has not started. Returns the state it had: `PENDING` means cancelled, '' unknown id."""
        return cast("str", self._held(lambda: self._canceller.cancel(task_id), _NO_QUEUE))

    def charge(self, caller: Caller) -> float:
        """Count a request that was not submitted against its caller's rate. Returns the seconds until the caller may
        send again; 0 if it was within its rate, has none, or Redis cannot be reached.
        """
        quota = self._quotas.of(caller)
        if quota is None:
            return 0.0
        try:
            keys = QuotaKeys(quota=self._keys.quota(quota.key_id))
            early_us = self._charge(keys=keys, args=ChargeArgs(interval_us=quota.interval_us, burst=quota.burst))
        except RedisError as error:
            logger.warning("could not count a refused request against its caller's rate: %s", error)
            return 0.0
        return int(cast("int", early_us)) / 1_000_000

    def burst_of(self, caller: Caller) -> int | None:
        """The number of requests that a caller may send at once; None: it has no limit."""
        quota = self._quotas.of(caller)
        return None if quota is None else quota.burst

    def task_of(self, request_id: str, owner: str = "") -> str:
        """The task id for the owner's own request id; the given id itself if there is none."""
        known = self.named(request_id, owner)
        return known[0] if known else request_id

    def named(self, request_id: str, owner: str = "") -> tuple[str, float] | None:
        """The task id for the owner's own request id, and the Redis time in ms until which it is known."""
        name = self._keys.request(scoped(request_id, owner))
        pipeline: Any = self._redis.pipeline(transaction=False)
        # It is empty again after each try.
        told = self._held(lambda: pipeline.get(name).pttl(name).time().execute(), _NO_RESULTS)
        task_id, left_ms, now = cast("tuple[bytes | None, int, tuple[int, int]]", told)
        return (task_id.decode(), until_ms(left_ms, now)) if task_id else None

    def _answered(self, out: Outgoing) -> None:
        CACHE_HITS.labels(out.submission.model).inc()
        self._on_answered(out)

    def _take_back(self, task_ids: Sequence[str]) -> bool:
        longest_ms = self._settings.request_timeout_ms
        try:
            keys = HangUpKeys(cancelled=self._keys.cancelled())
            self._hang_up(keys=keys, args=[*HangUpArgs(keep_ms=longest_ms), *task_ids])
        except RedisError as error:
            logger.warning("could not cancel %d requests whose callers have disconnected: %s", len(task_ids), error)
            return False
        return True

    def _take_back_later(self, task_ids: Sequence[str]) -> None:
        """Retry once Redis answers again. Requests past their deadlines are dropped anyway."""

        def keep_trying() -> None:
            until = time.monotonic() + self._settings.request_timeout_s
            while not self._take_back(task_ids) and time.monotonic() < until:
                gevent.sleep(_TAKE_BACK_EVERY_S)

        gevent.spawn(keep_trying)

    def _stored(self, task_id: str, deadline: float) -> Reply | None:
        key = self._keys.result(task_id)
        raw = cast("bytes | None", self._held(lambda: self._redis.get(key), _NO_RESULTS, deadline))
        return decode_reply(raw) if raw else None

    def _held(self, call: Callable[[], object], text: str, deadline: float = math.inf) -> object:
        """The result of a call that may be repeated, and is while Redis fails over. Raises BackendUnavailable."""
        until = min(time.monotonic() + self._hold_s, deadline)
        while True:
            try:
                return call()
            except RedisError as error:
                passes = meaning_of(error) in {Meaning.ANEW, Meaning.LATER}
                if not passes or time.monotonic() >= until:
                    raise BackendUnavailable(text) from error
            gevent.sleep(_HELD_PAUSE_S)

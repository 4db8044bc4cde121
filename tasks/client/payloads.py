"""Large inputs of a frontend, and large outputs for its callers, which lie beside the queue (`batching.blobs`).

    submit ──hash──▶ write the blob ──▶ message with a reference ──▶ outbox    only then can a worker see the message
                            │                                          └ not queued: the blob is deleted
                            └ no room, no answer: the caller is told, and nothing is queued
    reply with a reference ──read the blob──▶ the output                       deleted, if nobody else may ask for it

The hash is of the bytes, and stands for them wherever equal requests are looked for. For workers of the same machine
the payload is in shared memory too (`batching.blobs.local_first`). Where one caller waits here, and all workers are
near, it is there alone, and needs no hash. Should Redis lose its memory, the file is there; should this process end,
nobody misses it. When a worker elsewhere appears meanwhile, such payloads are written to Redis after all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import gevent
from gevent import get_hub
from gevent.event import Event
from gevent.pool import Group
from redis import Redis
from redis.exceptions import RedisError

from batching.blobs.local_first import LocalFirst, files_of
from batching.blobs.reference import LONGEST, BlobRef, Form, is_alone
from batching.blobs.store import GRACE_MS, BlobGoneError, NoRoomError, Usage, open_blobs
from batching.policy import Shed
from config.keys import Shard
from config.redis_errors import Meaning, meaning_of
from config.settings import Settings
from tasks.client.nearby import Nearby, NearbyWorkers
from tasks.client.outbox import Beside
from tasks.client.pending import Pending
from tasks.client.submission import Submission
from tasks.errors import BackendUnavailable, BunchError, DeadlineExceeded, RateLimited
from tasks.protocol.outgoing import Outgoing
from tasks.protocol.outputs import reference_in, with_output
from tasks.protocol.results import Reply, decode_reply

logger = logging.getLogger(__name__)

# From here on a hash takes longer than another thread: the event loop serves others meanwhile.
_HASHED_ELSEWHERE_BYTES = 256 * 1024
_TEND_EVERY_S = 5.0
# Often, since the queue's own limit goes on while a worker elsewhere cannot read what it claims.
_FOLLOW_EVERY_S = 0.25
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 0.5
_NOT_REACHABLE = "the store of large payloads is not reachable; try again shortly"

Settle = Callable[[Pending, object], None]
Post = Callable[[Pending, Submission, BlobRef], None]
Refusal = Callable[[Pending, Submission], BunchError | None]


class PayloadSender(Beside):
    """Writes the blobs of one process. `post` queues a request whose blob is written; `settle` tells its caller why it
    is not. With `hold_s` the store may fail over for so long. `kept`: what is posted and not answered yet. `refusal`
    tells why a request would not be admitted now; it raises RedisError.
    """

    def __init__(
        self,
        blobs: LocalFirst,
        lies_beside: Callable[[int], bool],
        settle: Settle,
        post: Post,
        hold_s: float = 0.0,
        nearby: Callable[[], Nearby] = lambda: Nearby.NONE,
        kept: Callable[[], list[Any]] = list,
        refusal: Refusal = lambda pending, submission: None,
    ) -> None:
        self._blobs = blobs
        self._nearby = nearby
        self._kept = kept
        self._refusal = refusal
        # Until then requests may wait here whose payload is in shared memory alone; `_followed`: in Redis after all.
        self._near_until = 0.0
        self._any_near = Event()
        self._followed: set[str] = set()
        self._tending: gevent.Greenlet | None = None
        self._lies_beside = lies_beside
        self._settle = settle
        self._post = post
        self._hold_s = hold_s
        self._under_way = Group()

    @classmethod
    def of(
        cls,
        settings: Settings,
        redis: Redis,
        keys: Shard,
        settle: Settle,
        post: Post,
        kept: Callable[[], list[Any]],
        refusal: Refusal,
    ) -> PayloadSender:
        files = files_of(settings)
        blobs = LocalFirst(open_blobs(settings, redis, keys), files)
        nearby = NearbyWorkers(redis, keys, files)
        return cls(blobs, settings.lies_beside, settle, post, settings.failover_wait_s, nearby.look, kept, refusal)

    def start(self, channel: str) -> None:
        """Use what this process shares with the workers of its machine, which know it by its `channel`."""
        if self._blobs.files.open(channel):
            self._tending = gevent.spawn(self._tend)

    def stop(self) -> None:
        self._under_way.kill()
        if self._tending is not None:
            self._tending.kill()
        self._blobs.files.close()

    def _tend(self) -> None:
        while True:
            self._blobs.files.sweep()
            if time.monotonic() < self._near_until:
                self._follow()
                gevent.sleep(_FOLLOW_EVERY_S)
            else:
                self._any_near.clear()
                self._any_near.wait(_TEND_EVERY_S)

    def _follow(self) -> None:
        """Write to Redis what is in shared memory alone, if a worker may claim it that does not see it."""
        near = {
            each.out.blob: each for each in self._kept() if each.out.blob is not None and each.out.blob.near is True
        }
        self._followed.intersection_update(blob.id for blob in near)
        if not near or self._nearby() is Nearby.ALL:
            return
        try:
            for blob, each in near.items():
                if blob.id not in self._followed:
                    self._blobs.put(blob, each.out.submission.input, each.out.deadline_ms + GRACE_MS)
                    self._followed.add(blob.id)
                    if each.pending.done:
                        # It has ended meanwhile, and whoever has ended it found nothing there.
                        self._release([blob.id])
        except (RedisError, NoRoomError) as error:
            logger.info("payloads of %d requests may stay in shared memory alone: %s", len(near), error)

    def usage(self) -> Usage:
        """What lies in the store. Raises RedisError."""
        return self._blobs.usage()

    @property
    def shared_bytes(self) -> int:
        """The bytes in this machine's shared memory."""
        return self._blobs.files.used_bytes()

    def takes(self, submission: Submission) -> bool:
        """Return whether the input is to lie beside the queue."""
        return self._lies_beside(len(submission.input))

    def queued_bytes(self, submission: Submission) -> int:
        """The bytes of its message in the queue."""
        return LONGEST + len(submission.parameters) if self.takes(submission) else submission.queued_bytes

    def send(self, submission: Submission, pending: Pending) -> None:
        """Write the blob and post the request; returns at once."""
        self._under_way.spawn(self._send, submission, pending)

    def _send(self, submission: Submission, pending: Pending) -> None:
        written = False
        try:
            self._require_admission(submission, pending)
            if pending.done:
                return
            written = True
            blob = self._reference_to(submission, pending)
            if blob.near is True:
                self._near_until = max(self._near_until, pending.deadline)
                self._any_near.set()
            else:
                self._write(blob, submission, pending)
            if not pending.done:
                self._post(pending, submission, blob)
                # From here on it is the outbox that says whether it is used.
                written = False
        except BunchError as error:
            self._settle(pending, error)
        except Exception:
            logger.exception("could not queue request %s; its caller is told to try again", pending.task_id)
            self._settle(pending, BackendUnavailable("the request could not be queued; try again shortly"))
        finally:
            if written:
                self._release([pending.task_id])

    def _require_admission(self, submission: Submission, pending: Pending) -> None:
        """Raise the refusal of a request that would not be queued now; nothing has been written for it."""
        if pending.deadline <= time.monotonic():
            raise DeadlineExceeded("the request could not be queued before its deadline")
        try:
            refusal = self._refusal(pending, submission)
        except RedisError as error:
            if not self._hold_s and meaning_of(error) in {Meaning.ANEW, Meaning.LATER}:
                raise BackendUnavailable("the queue is not reachable; try again shortly") from error
            # It may be back when the payload is written.
            return
        if refusal is not None:
            raise refusal

    def _reference_to(self, submission: Submission, pending: Pending) -> BlobRef:
        """The reference to a large input, which is in shared memory if a worker is near."""
        value, nearby = submission.input, self._nearby()
        form: Form = "bytes" if submission.binary else "json"
        ttl_ms = int((pending.deadline - time.monotonic()) * 1000) + GRACE_MS
        # Nobody may ask for the answer later who has been told that there will be one.
        waits = submission.waits and not (submission.idempotency_key or submission.request_id)
        alone = waits and nearby is Nearby.ALL
        # The hash is the question, where others may have the same.
        about = {"near": nearby is not Nearby.NONE, "alone": alone, "hashed": not pending.is_sole}

        def write() -> BlobRef:
            return self._blobs.write_near(pending.task_id, value, form, ttl_ms, **about)

        if len(value) < _HASHED_ELSEWHERE_BYTES:
            return write()
        reference: BlobRef = get_hub().threadpool.apply(write)
        return reference

    def _write(self, blob: BlobRef, submission: Submission, pending: Pending) -> None:
        """Raises BackendUnavailable, RateLimited, DeadlineExceeded."""
        until = min(time.monotonic() + self._hold_s, pending.deadline)
        pause_s = _FIRST_PAUSE_S
        while True:
            left_s = pending.deadline - time.monotonic()
            if left_s <= 0:
                raise DeadlineExceeded("the request could not be queued before its deadline")
            try:
                self._blobs.put(blob, submission.input, int(left_s * 1000) + GRACE_MS)
            except NoRoomError as error:
                raise RateLimited(f"{error}; try again shortly", 1.0, Shed.MEMORY.value) from error
            except RedisError as error:
                passes = meaning_of(error) in {Meaning.ANEW, Meaning.LATER}
                if not passes or time.monotonic() >= until:
                    raise BackendUnavailable(_NOT_REACHABLE) from error
            else:
                return
            gevent.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    def write_again(self, outs: Sequence[Outgoing]) -> None:
        """Write the blobs of requests that go to another server than before. Raises RedisError."""
        for out in outs:
            if out.blob is None or out.blob.near is True:
                continue
            try:
                self._blobs.put(out.blob, out.submission.input, out.deadline_ms + GRACE_MS)
            except NoRoomError as error:
                logger.warning("the payload of request %s is not there any more: %s", out.task_id, error)

    def unused(self, out: Outgoing) -> None:
        """The request does not go to a worker."""
        if out.blob is not None:
            self._under_way.spawn(self._release, [out.blob.id])

    def _release(self, blob_ids: Sequence[str]) -> None:
        try:
            self._blobs.release(blob_ids)
        except RedisError as error:
            logger.info("%d payloads are not deleted now, and expire by themselves: %s", len(blob_ids), error)

    def forget(self, task_id: str, stored: Any) -> None:
        """The result of a request was deleted, if there was one: delete what lies beside it."""
        ref = reference_in(decode_reply(stored)) if stored else None
        # What answers other requests too stays for them.
        if ref is not None and is_alone(ref.id, task_id):
            self._release([ref.id])

    def whole(self, reply: Reply, *, sole: bool = False, as_bytes: bool = False) -> Reply:
        """The reply with its output in the place of a reference. `sole`: nobody else may ask for it. `as_bytes` as in
        `with_output`.

        Raises:
            BackendUnavailable: the store does not answer, or the output is not there any more.
        """
        ref = reference_in(reply)
        if ref is None:
            return reply
        try:
            reply = with_output(reply, self._blobs, as_bytes=as_bytes)
        except BlobGoneError as error:
            raise BackendUnavailable("the output of this request is not there any more; send it again") from error
        except RedisError as error:
            raise BackendUnavailable(_NOT_REACHABLE) from error
        if sole:
            self._under_way.spawn(self._release, [ref.id])
        return reply

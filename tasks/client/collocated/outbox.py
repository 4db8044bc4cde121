"""The outbox of a process that has its queues in itself: each request is admitted and queued at once.

    put ──▶ its key's rate ──▶ asked before? ──▶ admission ──▶ the queue
             └ refused          ├ Idempotency-Key: whose outcome it gets
                                ├ a kept answer: answered
                                └ equal to one under way: waits with it

The order is that of `submit.lua`. Nothing here switches to another greenlet, so every step is atomic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from batching.fast_header import HEAD, NO_KEY, FastHeader, write_fast_header
from batching.memory.questions import Part, Waiter
from batching.memory.queues import Queued
from batching.memory.store import MemoryStore
from batching.memory.timed import Timed
from batching.request import Request
from config.settings import Settings
from config.tiers import TIERS
from tasks.client.admission_codes import refusals
from tasks.client.collocated.admission import LocalAdmission, Verdict
from tasks.client.dedup import DedupIdentity, Repeated
from tasks.client.outbox import Receipt
from tasks.client.pending import Pending
from tasks.errors import IdempotencyConflict
from tasks.protocol.outgoing import MessageWriter, Outgoing
from tasks.protocol.results import decode_details, decode_reply

_encode = msgspec.json.Encoder().encode

# What a message has besides its input and parameters.
_ENVELOPE_BYTES = 600
# The part of a fast header in front of the fields that the writer writes.
_BEFORE_TRACKED = len(HEAD) + 47


class LocalWriter(MessageWriter):
    """Writes a message only when it must leave the process."""

    def rest(self, out: Outgoing, now_epoch_s: float) -> bytes:
        return b""

    def message(self, out: Outgoing, header: FastHeader) -> bytes:
        rest = super().rest(out, header.enqueued_ms / 1000)
        return write_fast_header(header)[:_BEFORE_TRACKED] + rest


class LocalRequest:
    """`batching.memory.queues.Source` of a request that came in by this process's own door."""

    __slots__ = ("_out", "_writer")

    def __init__(self, out: Outgoing, writer: LocalWriter) -> None:
        self._out = out
        self._writer = writer

    def message(self, header: FastHeader) -> bytes:
        return self._writer.message(self._out, header)

    def request(self, header: FastHeader, rank: int, position: int) -> Request:
        out = self._out
        asked = out.submission
        times = (header.attempt + 1, header.lost, header.enqueued_ms, header.deadline_ms, header.result_ttl_ms)
        request = Request(
            out.task_id, TIERS[rank], position, asked.input_json, asked.parameters, *times, self._writer.channel
        )
        request.tracked = header.tracked
        request.sent_ms = header.enqueued_ms
        request.sealed = True
        if asked.caller.owner:
            request.owner = asked.caller.owner
        if asked.traceparent:
            request.traceparent, request.tracestate = asked.traceparent, asked.tracestate
        if asked.request_id:
            request.request_id = asked.request_id
        if asked.client_id:
            request.client_id = asked.client_id
        if out.once is not None:
            request.question, request.keep_ms = out.once.question, out.once.keep_ms
        return request


class LocalOutbox:
    """Queues requests in `store`. `settle` wakes a caller who is refused or waits for a receipt; `on_answered` is told
    of each request that was answered from the cache, which no executor sees.
    """

    def __init__(
        self,
        settings: Settings,
        store: MemoryStore,
        admission: LocalAdmission,
        settle: Callable[[Pending, object], None],
        writer: LocalWriter,
        on_answered: Callable[[Outgoing], None] = lambda out: None,
    ) -> None:
        self._store = store
        self._admission = admission
        self._settle = settle
        self._writer = writer
        self._on_answered = on_answered
        self._keeps = {name for name, model in settings.models.items() if model.cache and settings.cache_ttl_ms > 0}
        # Of each Idempotency-Key, the hash of its request and the task id; of each caller's own id, the task id.
        self._claims: Timed[tuple[str, str]] = Timed(store.now_ms)
        self.request_ids: Timed[str] = Timed(store.now_ms)

    def start(self) -> None:
        """Nothing runs beside the requests."""

    def stop(self) -> None:
        """Nothing is open."""

    def put(self, out: Outgoing, rest: bytes, pending: Pending, *, receipt: bool = False) -> None:
        asked = out.submission
        rank = asked.tier.rank
        now = self._store.now_ms()
        tag = NO_KEY if out.quota is None else out.quota.tag
        times = (now + out.deadline_ms, now + out.queue_limit_ms, now)
        header = FastHeader(*times, 0, 0, out.tracked, out.result_ttl_ms, out.task_id, tag)
        size = len(asked.input) + len(asked.parameters) + _ENVELOPE_BYTES
        item = Queued(header, size, source=LocalRequest(out, self._writer))
        if out.once is not None:
            refused = self._known_before(out, item, rank)
        else:
            refused = self._admission.refusal(out, rank)
            if refused is None:
                self._queue(out, item, rank)
        if refused is None:
            if receipt:
                self._settle(pending, Receipt(out.task_id))
        elif isinstance(refused, Verdict):
            answer = refused.status.code.encode() + b"\n" + refused.row()
            self._settle(pending, next(refusals(answer, [out])))
        else:
            self._settle(pending, refused)

    def _queue(self, out: Outgoing, item: Queued, rank: int) -> None:
        self._note(out)
        model = out.submission.model
        self._admission.admitted(model, rank)
        self._store.enqueue(model, rank, item)

    def _note(self, out: Outgoing) -> None:
        """Make an accepted request known under its own id and the caller's."""
        if out.tracked:
            self._store.set_pending(out.task_id, out.deadline_ms + out.result_ttl_ms)
        if out.request_key:
            self.request_ids.set(out.request_key, out.task_id, out.deadline_ms + out.result_ttl_ms)

    def _known_before(self, out: Outgoing, item: Queued, rank: int) -> Verdict | IdempotencyConflict | Repeated | None:
        """Queue or answer a request that may be a repeat; returns why it was not queued, if its caller must be told."""
        once = out.once
        assert once is not None
        # Also a request that is not computed counts against its key's rate.
        refused: Verdict | IdempotencyConflict | Repeated | None = self._admission.rate_refusal(out)
        if refused is None and once.claim:
            refused = self._first_of(once)
        if refused is None and not self._is_answered(out, once):
            refused = self._join_or_queue(out, once, item, rank)
        if refused is None and once.claim:
            self._claims.set(once.claim, (once.fingerprint, out.task_id), out.deadline_ms + out.result_ttl_ms)
        return refused

    def _first_of(self, once: DedupIdentity) -> IdempotencyConflict | Repeated | None:
        """The first request with an Idempotency-Key; None also if that one was never answered: then this one runs."""
        found = self._claims.get(once.claim)
        stored = self._store.states.get(found[1]) if found else None
        if found is None or stored is None:
            return None
        reply = decode_reply(stored)
        expired = reply.status == "FAILURE" and decode_details(reply.bunch).code == "DEADLINE_EXCEEDED"
        if reply.status == "REVOKED" or expired:
            return None
        if found[0] != once.fingerprint:
            return IdempotencyConflict("this Idempotency-Key was used for a different request; use a new one")
        return Repeated(found[1])

    def _is_answered(self, out: Outgoing, once: DedupIdentity) -> bool:
        """Answer the request if its answer is kept; returns whether it was."""
        model, store = out.submission.model, self._store
        if not once.question or model not in self._keeps or self._admission.is_full:
            return False
        result = store.questions.kept(model, once.question, out.task_id, out.submission.tier.value)
        if result is None:
            return False
        self._note(out)
        store.answer(out.task_id, result, out.result_ttl_ms, heard=not out.tracked)
        self._on_answered(out)
        return True

    def _join_or_queue(self, out: Outgoing, once: DedupIdentity, item: Queued, rank: int) -> Verdict | None:
        """Let the request wait with an equal one, or queue it, so that others can wait with it."""
        model, questions = out.submission.model, self._store.questions
        waiter = Waiter(item, model, rank, _encode(out.submission.caller.owner))
        refused = self._admission.pressure_refusal(out, rank)
        part = Part.ALONE
        if once.question and not self._admission.is_full:
            withdraw = partial(self._store.withdraw, model)
            part = questions.part_of(once.question, waiter, withdraw, may_lead=refused is None)
        if part is Part.JOINS:
            self._note(out)
            return None
        if refused is not None:
            return self._admission.uncounted(out, refused)
        if part is Part.LEADS:
            questions.lead(once.question, waiter)
        self._queue(out, item, rank)
        return None

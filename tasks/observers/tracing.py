"""The worker's part of a trace.

    POST /v1/inference                            (frontend; its context came in the message)
    └── bunch.infer       admission … outcome     one for each sampled request; linked to its batch
        ├── queue         admission … claim
        └── compute       the pass over the model
    batch                 claim … settled         a trace of its own, linked to the requests in it

A retried request has a `bunch.infer` for each attempt. Imported only where spans are exported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opentelemetry.trace import Span, SpanKind

from batching.ports import BatchInfo
from batching.request import Failed, Ok, Outcome, Rejected, Request
from config.keys import QUEUE_PREFIX, TASK_NAME, Shard
from config.settings import Settings
from tasks.observability.otel import Attributes, Remote, Spans, fail
from tasks.protocol import traceparent

_MS = 1_000_000


class _End(NamedTuple):
    """The reason why a request has no output; both are empty for one that has. `kind` has few values."""

    kind: str = ""
    why: str = ""


@dataclass(slots=True)
class _Open:
    """A batch in an executor; `ends` says how each of its unsettled requests has ended so far."""

    sampled: list[Request]
    attempt: int
    ends: dict[str, _End] = field(default_factory=dict)


_ELSEWHERE = _End("settled_elsewhere", "settled by another worker")


class BatchTracer:
    """`batching.ports.Observer`."""

    def __init__(self, settings: Settings) -> None:
        self._spans = Spans(settings, "bunch-worker")
        self._open: dict[str, _Open] = {}

    def stop(self) -> None:
        self._spans.stop()

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        sampled = [each for each in requests if each.traceparent and traceparent.is_sampled(each.traceparent)]
        if sampled:
            self._open[batch.batch_id] = _Open(sampled, max(each.attempt for each in requests))

    def retried(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        open_batch = self._open.get(batch.batch_id)
        if open_batch is not None:
            open_batch.ends.update((each.id, _End("retried", f"tried again: {why}")) for each in requests)

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        self._close(batch, {each.id: _End("given_back", f"given back: {why}") for each in requests}, why)

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        ends = {request.id: _end(outcome) for request, outcome in settled}
        if batch.batch_id in self._open:
            self._close(batch, ends, "")
            return
        # Settled at the claim, without the model: expired, cancelled, unreadable.
        now_ns = time.time_ns()
        for request, _ in settled:
            if request.traceparent and traceparent.is_sampled(request.traceparent):
                self._request(request, batch, None, ends[request.id], now_ns)

    def _close(self, batch: BatchInfo, ends: dict[str, _End], broken: str) -> None:
        open_batch = self._open.pop(batch.batch_id, None)
        if open_batch is None:
            return
        now_ns = time.time_ns()
        span = self._spans.start(
            "batch",
            SpanKind.CONSUMER,
            None,
            min(now_ns, batch.claimed_ms * _MS),
            {
                **_common(batch),
                # Its requests may come from the queues of several tiers.
                "messaging.destination.name": QUEUE_PREFIX + batch.model,
                "messaging.batch.message_count": batch.size,
                "bunch.batch_size": batch.size,
                "bunch.reason": batch.reason.value,
                "bunch.attempt": open_batch.attempt,
                "bunch.compute_ms": round(batch.compute_s * 1000, 3),
                "bunch.passes": batch.passes,
            },
            [Remote(each.traceparent, each.tracestate) for each in open_batch.sampled],
        )
        for request in open_batch.sampled:
            end = ends.get(request.id) or open_batch.ends.get(request.id) or _ELSEWHERE
            self._request(request, batch, span, end, now_ns)
        if broken:
            fail(span, "given_back", broken)
        span.end(now_ns)

    def _request(self, request: Request, batch: BatchInfo, inside: Span | None, end: _End, now_ns: int) -> None:
        claimed_ns = min(now_ns, batch.claimed_ms * _MS)
        enqueued_ns = min(claimed_ns, request.enqueued_ms * _MS) if request.enqueued_ms else claimed_ns
        attributes: Attributes = {
            **_common(batch),
            "messaging.destination.name": Shard().queue(batch.model, request.tier),
            "messaging.message.id": request.id,
            "bunch.request_id": request.request_id or request.id,
            "bunch.tier": request.tier.value,
            "bunch.attempt": request.attempt,
            **({"bunch.client_id": request.client_id} if request.client_id else {}),
        }
        links = [] if inside is None else [inside]
        sender = Remote(request.traceparent, request.tracestate)
        span = self._spans.start(TASK_NAME, SpanKind.CONSUMER, sender, enqueued_ns, attributes, links)
        self._spans.start("queue", SpanKind.INTERNAL, span, enqueued_ns).end(claimed_ns)
        if inside is not None and batch.compute_s:
            # Approximate: the time to store the outcomes is in it.
            began_ns = max(claimed_ns, now_ns - int(batch.compute_s * 1e9))
            self._spans.start("compute", SpanKind.INTERNAL, span, began_ns).end(now_ns)
        if end.kind:
            fail(span, *end)
        span.end(now_ns)


def _common(batch: BatchInfo) -> Attributes:
    return {
        "messaging.system": "bunch",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "bunch.batch_id": batch.batch_id,
        "bunch.model": batch.model,
    }


def _end(outcome: Outcome) -> _End:
    match outcome:
        case Ok():
            return _End()
        case Rejected() | Failed():
            return _End(outcome.exc_type, f"{outcome.exc_type}: {outcome.message}")
        case _:
            return _End(type(outcome).__name__, outcome.message)

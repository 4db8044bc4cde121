"""Turns the reports of the claim loops into metrics, Celery's own worker state, and Celery events.

Without Celery's state, `inspect active`, the soft shutdown and the heartbeat's `active` would see an idle worker.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from celery.worker import state as worker_state

from batching.columns import attempt_of, is_tracked, kinds_of
from batching.executor import Cause
from batching.ports import BatchInfo
from batching.request import Cancelled, Expired, Failed, Ok, Outcome, Rejected, Request
from config.keys import TASK_NAME, Shard
from config.tiers import Tier
from tasks.celery.active import make_walkable
from tasks.observability import metrics
from tasks.observers.task_events import TaskEvents, shown_text
from tasks.protocol import traceparent
from tasks.protocol.disclosure import Disclosure

logger = logging.getLogger(__name__)

# Outcomes of which nothing is counted or logged.
_WORDLESS = {Ok, Rejected}
_came_at = attrgetter("enqueued_ms", "tier")
# The length of an error message whose traceback was logged before.
_WORDS = 200


class InsideABatch(Exception):
    """Celery's remote control answers with this to a request to terminate one request of a running batch."""


class ActiveRequest:
    """The attributes that `inspect active` needs of a running request; `celery.worker.state` holds it weakly."""

    __slots__ = (
        "__weakref__",
        "_batch",
        "_payloads",
        "_request",
        "acknowledged",
        "eventer",
        "id",
        "name",
        "time_start",
        "tracked",
    )

    # `Consumer.cancel_active_requests` reads it: the request is given back, not acknowledged, when the worker dies.
    task = SimpleNamespace(acks_late=True)

    def __init__(self, request: Request, batch: BatchInfo, now: float, *, payloads: bool = False) -> None:
        self._payloads = payloads
        self.id = request.id
        self.name = TASK_NAME
        self.time_start = now
        self.acknowledged = False
        self.tracked = request.tracked
        self._request = request
        self._batch = batch

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Answer `revoke(terminate=True)` with an error: a batch cannot lose one request."""
        raise InsideABatch("a request that the model is computing cannot be terminated by itself")

    def info(self, safe: bool = False) -> dict[str, Any]:
        queue = Shard().queue(self._batch.model, self._request.tier)
        return {
            "id": self.id,
            "name": self.name,
            "args": shown_text(self._request.input) if self._payloads else "",
            "kwargs": {"model": self._batch.model, "tier": self._request.tier.value},
            "type": self.name,
            "time_start": self.time_start,
            "acknowledged": self.acknowledged,
            "delivery_info": {"exchange": "", "routing_key": queue, "redelivered": self._request.attempt > 1},
            "worker_pid": None,
            "batch_id": self._batch.batch_id,
        }

    def cancel(self, pool: Any, emit_retry: bool = True) -> None:
        """Do nothing at a cold shutdown: the claim loop gives back the whole batch."""


class WorkerTelemetry:
    """`batching.ports.Observer` of every claim loop of one worker."""

    def __init__(
        self,
        dispatcher: Callable[[], Any],
        events_per_second: float = 50.0,
        mark_started: Callable[[Sequence[Request]], None] = lambda requests: None,
        *,
        counting: bool = True,
        disclosure: Disclosure | None = None,
        payloads: bool = False,
    ) -> None:
        self._payloads = payloads
        self._mark_started = mark_started
        self._counting = counting
        self._events = TaskEvents(dispatcher, events_per_second, disclosure=disclosure, payloads=payloads)
        self._active = make_walkable(worker_state.active_requests)
        # By batch: the requests whose ids somebody may know.
        self._named: dict[str, dict[str, ActiveRequest]] = {}
        self._children: dict[tuple[Any, ...], Any] = {}

    def serves(self, model: str) -> None:
        """Create the counters that alerts watch at zero: the increase of one that begins at 1 would not be seen."""
        for reason in ("error", "executor_lost"):
            self._child(metrics.DEAD_LETTERED, model, reason)
            self._child(metrics.RETRIES, model, reason)
        for cause in Cause:
            self._child(metrics.REPLACEMENTS, model, cause.value)

    def loaded(self, model: str, took_s: float) -> None:
        """An executor's process has loaded its model."""
        self._child(metrics.EXECUTOR_LOAD_SECONDS, model).observe(took_s)

    def replaced(self, model: str, cause: Cause) -> None:
        """An executor's process is gone and will be replaced."""
        self._child(metrics.REPLACEMENTS, model, cause.value).inc()

    def gone(self) -> None:
        """This worker has deregistered another one."""
        self._child(metrics.WORKERS_LOST).inc()

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        now = time.time()
        batch_id = batch.batch_id
        self._active.enter(batch_id, len(requests), lambda: self._shown(requests, batch, now))
        # By id as well: `revoke` does not touch the state of a task that it finds among the active ones.
        # Nobody can name the other requests: their ids are only told with their answers.
        if any(map(is_tracked, requests)):
            self._named[batch_id] = named = {each.id: each for each in self._active.look(batch_id) if each.tracked}
            worker_state.requests.update(named)
        self._mark_started(requests)
        self._count_claim(requests, batch)
        try:
            self._events.claimed(requests, batch)
        except Exception as error:  # noqa: BLE001 - kombu raises whatever its transport does; a batch must not fail for it
            logger.debug("could not send task events: %s", error)

    def _shown(self, requests: Sequence[Request], batch: BatchInfo, now: float) -> list[ActiveRequest]:
        return [ActiveRequest(each, batch, now, payloads=self._payloads) for each in requests]

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        ended = self._leave(batch)
        if ended:
            worker_state.total_count[TASK_NAME] += ended
        model = batch.model
        self._count_compute(batch)
        told = False
        # A batch of outputs is not looked through.
        for request, outcome in settled if kinds_of(settled) - _WORDLESS else ():
            if isinstance(outcome, Expired):
                self._child(metrics.EXPIRED, model, request.tier.value).inc()
            elif isinstance(outcome, Cancelled):
                self._child(metrics.CANCELLED, model).inc()
            elif isinstance(outcome, Failed) and request.position > 0:
                # Requests that share its outcome are kept in no dead letter.
                reason = "executor_lost" if request.lost else "error"
                self._child(metrics.DEAD_LETTERED, model, reason).inc()
                # One traceback per batch: when everything fails, the log must not become the next problem.
                why = outcome.message[:_WORDS] if told else (outcome.traceback or outcome.message)
                logger.warning(
                    "a request failed and is kept as a dead letter: %s", why.rstrip(), extra=about(request, batch)
                )
                told = True
        if settled and logger.isEnabledFor(logging.DEBUG):
            extra = {**about_batch(batch), "compute_ms": round(batch.compute_s * 1000, 3), "reason": batch.reason.value}
            logger.debug("settled %d requests", len(settled), extra=extra)
        try:
            self._events.finished(settled, batch)
        except Exception as error:  # noqa: BLE001 - kombu raises whatever its transport does; a batch must not fail for it
            logger.debug("could not send task events: %s", error)

    def retried(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        self._child(metrics.RETRIES, batch.model, "error").inc(len(requests))
        logger.info("retrying %d requests: %.200s", len(requests), why, extra=about_batch(batch))
        try:
            self._events.retried(requests, batch, why)
        except Exception as error:  # noqa: BLE001 - as above
            logger.debug("could not send task events: %s", error)

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        self._leave(batch)
        self._events.returned(batch)
        self._child(metrics.RETRIES, batch.model, "executor_lost").inc(len(requests))

    def tick(self) -> None:
        """Called once a second by the heartbeat."""
        try:
            self._events.tick()
        except Exception as error:  # noqa: BLE001 - as above
            logger.debug("could not send task events: %s", error)

    def _leave(self, batch: BatchInfo) -> int:
        for task_id in self._named.pop(batch.batch_id, ()):
            worker_state.requests.pop(task_id, None)
        return self._active.leave(batch.batch_id)

    def _child(self, metric: Any, *labels: str) -> Any:
        """A metric's child, cached: `labels()` takes a lock and builds strings at each call, and children are few."""
        child = self._children.get((metric, *labels))
        if child is None:
            counted = metric.labels(*labels) if labels else metric
            child = counted if self._counting else metrics.Nothing()
            self._children[metric, *labels] = child
        return child

    def _count_compute(self, batch: BatchInfo) -> None:
        if batch.passes > 1:
            self._child(metrics.EXTRA_PASSES, batch.model).inc(batch.passes - 1)
        if batch.padding:
            self._child(metrics.PADDING, batch.model).inc(batch.padding)
        if batch.collapsed:
            self._child(metrics.COLLAPSED, batch.model).inc(batch.collapsed)
        if batch.compute_s:
            self._child(metrics.COMPUTE_SECONDS, batch.model).observe(batch.compute_s)

    def _count_claim(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        model = batch.model
        self._child(metrics.BATCH_SIZE, model).observe(batch.size)
        self._child(metrics.BATCHES, model, batch.reason.value).inc()
        oldest = batch.claimed_ms
        waited: dict[Tier, tuple[list[int], list[float]]] = {}
        # Neighbours usually arrived together, and then the values are the same.
        for (enqueued_ms, tier), together in groupby(requests, _came_at):
            if not enqueued_ms:
                continue
            oldest = min(oldest, enqueued_ms)
            waited_s = max(0, batch.claimed_ms - enqueued_ms) / 1000
            counted, amounts = waited.get(tier) or waited.setdefault(tier, (metrics.buckets(), []))
            number = len(list(together))
            counted[bisect_left(metrics.SECONDS, waited_s)] += number
            amounts.append(number * waited_s)
        if self._counting:
            for tier, (counted, amounts) in waited.items():
                metrics.observe_all(self._child(metrics.QUEUE_SECONDS, model, tier.value), counted, sum(amounts))
        redelivered = len(requests) - list(map(attempt_of, requests)).count(1)
        self._child(metrics.BATCH_FILL_SECONDS, model).observe((batch.claimed_ms - oldest) / 1000)
        if redelivered:
            self._child(metrics.REDELIVERED, model).inc(redelivered)


def about(request: Request, batch: BatchInfo) -> dict[str, Any]:
    """The extra fields of a log line about a request."""
    return {
        **about_batch(batch),
        "request_id": request.request_id or request.id,
        "task_id": request.id,
        "tier": request.tier.value,
        "client_id": request.client_id or None,
        "attempt": request.attempt,
        "trace_id": traceparent.trace_id(request.traceparent),
    }


def about_batch(batch: BatchInfo) -> dict[str, Any]:
    return {"batch_id": batch.batch_id, "model": batch.model}

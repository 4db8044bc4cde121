"""Task events of batches, for Flower and other listeners: an unbiased sample, bounded under any load.

    claimed ──noted──▶ settled: received, started, ended of the whole batch ──one message──▶ task.multi
                  └──a second later, still computing: received, started ──▶ (the end then follows by itself)

A sampled request is shown from receipt to end, with the times at which each happened; the others not at all. Failures,
and requests that run again after one, are always shown, within a bound of their own. Nothing is done while nobody
listens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from batching.ports import BatchInfo
from batching.request import Cancelled, Expired, Failed, Ok, Outcome, Rejected, Request
from config.keys import TASK_NAME, Shard
from tasks.protocol.disclosure import Disclosure

SHOWN_BYTES = 256
_MAX_TRACEBACK = 1000
# The reason is in the log only: its words may be about another request of the batch.
_AGAIN = "tried again after a pause"
# Failures per sampled request. When everything fails, a sample of the failures is enough.
_FAILURES = 10


class EventSampler:
    """A token bucket in requests per second; a request that gets no token stays invisible to its end.

    An empty bucket gives nothing until it has a tenth of a second's tokens. Otherwise each batch at full speed would
    have one request to show, and the cost of a message hardly depends on how many events are in it.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._tokens = per_second
        self._sip = max(1.0, per_second / 10)
        self._empty = False
        self._clock = clock
        self._at = clock()

    def take(self, wanted: int) -> int:
        now = self._clock()
        self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._empty and self._tokens < self._sip:
            return 0
        granted = min(wanted, int(self._tokens))
        self._tokens -= granted
        self._empty = self._tokens < 1
        return granted


@dataclass(slots=True)
class _Shown:
    """The sampled requests of one running batch, when they were claimed, and whether that has been sent."""

    requests: dict[str, Request]
    batch: BatchInfo
    at: float
    told: bool = False


class TaskEvents:
    """Called by the observer; sends through the worker's dispatcher, which is a new object after each reconnect.

    May raise whatever kombu's transport raises. Called by the loops' threads and the heartbeat.
    """

    def __init__(
        self,
        dispatcher: Callable[[], Any],
        per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        shard: Shard | None = None,
        disclosure: Disclosure | None = None,
        payloads: bool = False,
    ) -> None:
        self._payloads = payloads
        self._dispatcher = dispatcher
        self._keys = shard or Shard()
        self._disclosure = disclosure or Disclosure()
        self._wall = wall
        self._sample = EventSampler(per_second, clock)
        self._failures = EventSampler(per_second * _FAILURES, clock)
        self._shown: dict[str, _Shown] = {}
        self._lock = threading.Lock()

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        if self._listening() is None:
            return
        again = [each for each in requests if each.attempt > 1]
        fresh = [each for each in requests if each.attempt <= 1] if again else requests
        with self._lock:
            shown = [*again[: self._failures.take(len(again))], *fresh[: self._sample.take(len(fresh))]]
            if shown:
                self._shown[batch.batch_id] = _Shown({each.id: each for each in shown}, batch, self._wall())

    def tick(self) -> None:
        """Once a second: send events for what has been computing since the last call."""
        dispatcher = self._listening()
        if dispatcher is None:
            return
        with self._lock:
            late = [each for each in self._shown.values() if not each.told]
            for each in late:
                self._tell(dispatcher, each)
        if late:
            dispatcher.flush(errors=False)

    def retried(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        dispatcher = self._listening()
        if dispatcher is None:
            return
        with self._lock:
            shown = self._shown.get(batch.batch_id)
            if shown is not None:
                self._tell(dispatcher, shown)
                for request in requests:
                    if shown.requests.pop(request.id, None):
                        dispatcher.send("task-retried", uuid=request.id, exception=_AGAIN, traceback="")
        # With the rest of the batch, whose end follows at once.

    def returned(self, batch: BatchInfo) -> None:
        """Requests that are shown stay as they are: they are received again with their next claim."""
        with self._lock:
            self._shown.pop(batch.batch_id, None)

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        dispatcher = self._listening()
        with self._lock:
            # Requests that are settled at the claim are reported before the others are claimed.
            shown = self._shown.pop(batch.batch_id, None)
            if dispatcher is None:
                return
            if shown is not None:
                self._tell(dispatcher, shown)
            sampled = shown.requests if shown else {}
            began = shown.at if shown else self._wall()
            for request, outcome in settled:
                visible = request.id in sampled
                if not visible and not isinstance(outcome, Ok) and self._failures.take(1):
                    self._received(dispatcher, request, batch, began)
                    if batch.compute_s:
                        dispatcher.send("task-started", uuid=request.id, timestamp=began)
                    visible = True
                if visible:
                    self._ended(dispatcher, request, outcome, batch)
        dispatcher.flush(errors=False)

    def _ended(self, dispatcher: Any, request: Request, outcome: Outcome, batch: BatchInfo) -> None:
        match outcome:
            case Ok():
                runtime = batch.compute_s
                dispatcher.send("task-succeeded", uuid=request.id, result=self._output(outcome), runtime=runtime)
            case Cancelled():
                dispatcher.send("task-revoked", uuid=request.id, terminated=False, signum=None, expired=False)
            case Expired():
                dispatcher.send("task-revoked", uuid=request.id, terminated=False, signum=None, expired=True)
            case Rejected() | Failed():
                message, traceback = outcome.message, None
                if isinstance(outcome, Failed):
                    message, traceback = self._disclosure.told(outcome, request.owner)
                dispatcher.send(
                    "task-failed",
                    uuid=request.id,
                    exception=f"{_cut(outcome.exc_type)}({_cut(message)!r})",
                    traceback=(traceback or "")[-_MAX_TRACEBACK:],
                )

    def _output(self, outcome: Ok) -> str:
        if not self._payloads:
            return ""
        cut = Ok(outcome.output[:SHOWN_BYTES], raw=True).in_json() if outcome.raw else outcome
        return shown_text(cut.output)

    def _tell(self, dispatcher: Any, shown: _Shown) -> None:
        if not shown.told:
            shown.told = True
            for request in shown.requests.values():
                self._received(dispatcher, request, shown.batch, shown.at)
                dispatcher.send("task-started", uuid=request.id, timestamp=shown.at)

    def _listening(self) -> Any:
        """The event dispatcher, if somebody listens to task events."""
        dispatcher = self._dispatcher()
        if dispatcher is None or not dispatcher.enabled:
            return None
        if dispatcher.groups and "task" not in dispatcher.groups:
            return None
        if dispatcher.on_send_buffered is not None or "task" not in dispatcher.buffer_group:
            # Celery sends a message for 24 events and calls the main loop for each; we send one message per batch.
            dispatcher.on_send_buffered = None
            dispatcher.buffer_limit = float("inf")
            dispatcher.buffer_group = {*dispatcher.buffer_group, "task"}
        return dispatcher

    def _received(self, dispatcher: Any, request: Request, batch: BatchInfo, at: float) -> None:
        dispatcher.send(
            "task-received",
            uuid=request.id,
            name=TASK_NAME,
            args=f"({shown_text(request.input)},)" if self._payloads else "()",
            # In the form of `repr`, which Flower parses (`kwargs:model=minilm` in its search).
            kwargs=repr({"model": batch.model, "tier": request.tier.value} | self._parameters(request)),
            root_id=request.id,
            parent_id=None,
            retries=request.attempt - 1,
            eta=None,
            expires=None,
            queue=self._keys.queue(batch.model, request.tier),
            batch_id=batch.batch_id,
            timestamp=at,
        )

    def _parameters(self, request: Request) -> dict[str, str]:
        return {"parameters": shown_text(request.parameters)} if self._payloads else {}


def shown_text(raw: bytes) -> str:
    text = raw[:SHOWN_BYTES].decode(errors="ignore")
    return text + "…" if len(raw) > SHOWN_BYTES else text


def _cut(text: str) -> str:
    return text[:SHOWN_BYTES]

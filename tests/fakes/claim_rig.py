"""A claim loop with everything around it in memory, under control of the test."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from batching.claim.idle_watch import IdleWatch
from batching.claim.loop import ClaimLoop
from batching.executor import Event, ExecutorGone, ExecutorState
from batching.policy import Decision, Dispatch, Look, Policy, QueueView, Reason, Wait, WhenIdle
from batching.ports import BatchInfo, Codec
from batching.request import Done, Failed, Ok, Outcome, Rejected, Request, Work
from config.keys import Shard
from config.schema import MAX_BATCH_BYTES
from config.tiers import Tier
from tasks.protocol.results import CeleryCodec, Details, ErrorResult, Reply, decode_details, decode_error, decode_reply
from tests.fakes.messages import our_message
from tests.fakes.store import MemoryBatchStore

MODEL = "m"
LONG_S = 30.0
Answer = Callable[[Work], "Event | None"]


@dataclass(frozen=True)
class Model:
    name: str = MODEL
    version: str = "1"
    max_attempts: int = 3
    max_batch_bytes: int = MAX_BATCH_BYTES
    batch_sizes: tuple[int, ...] = ()


def echo(work: Work) -> Done:
    return done(work, [Ok(each) for each in work.inputs])


def done(work: Work, outcomes: list[Ok | Rejected | Failed], **more: Any) -> Done:
    return Done(work.batch_id, 0.001, outcomes, **more)


class ScriptedExecutor:
    """Answers each batch at once with `answer`, on the feeder's own thread; None: it is still computing.

    With `say` a test sends the loop any event, at any time.
    """

    name = "scripted/0"

    def __init__(self, answer: Answer = echo) -> None:
        self.answer = answer
        self.taken: list[Work] = []
        self.gone = False
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()

    @property
    def state(self) -> ExecutorState:
        return ExecutorState.READY

    @property
    def error(self) -> str | None:
        return None

    def start(self) -> None:
        """Always ready."""

    def wait_ready(self, timeout_s: float) -> bool:
        return True

    def send(self, work: Work) -> None:
        if self.gone:
            raise ExecutorGone("no child to take it")
        self.taken.append(work)
        event = self.answer(work)
        if event is not None:
            self.say(event)

    def receive(self, timeout_s: float) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def interrupt(self) -> None:
        self._events.put(None)

    def stop(self, timeout_s: float) -> None:
        """Nothing runs."""

    def say(self, event: Event) -> None:
        self._events.put(event)


@dataclass(frozen=True)
class Eager:
    """A policy that dispatches all waiting requests, up to two batches in hand."""

    size: int = 4

    def decide(self, queue: QueueView, now: float) -> Decision:
        if queue.in_hand >= 2 or queue.depth == 0:
            return Wait()
        return Look() if queue.depth is None else Dispatch(self.size, Reason.IDLE)


@dataclass
class Witness:
    """A `batching.ports.Observer` that records its calls."""

    claims: list[tuple[BatchInfo, list[Request]]] = field(default_factory=list)
    ends: list[tuple[Request, Outcome]] = field(default_factory=list)
    retries: list[Request] = field(default_factory=list)
    returns: list[Request] = field(default_factory=list)

    def claimed(self, requests: Sequence[Request], batch: BatchInfo) -> None:
        self.claims.append((batch, list(requests)))

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        self.ends += settled

    def retried(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        self.retries += requests

    def returned(self, requests: Sequence[Request], batch: BatchInfo, why: str) -> None:
        self.returns += requests

    def tries(self, task_id: str) -> list[tuple[int, int]]:
        """Attempt and losses at each time that the request was sent to the executor."""
        return [(each.attempt, each.lost) for _, batch in self.claims for each in batch if each.id == task_id]


class Rig:
    """A rig. `start` it after the first messages are queued, for batches that do not depend on the scheduler."""

    def __init__(
        self,
        executor: Any = None,
        policy: Policy | None = None,
        *,
        max_attempts: int = 3,
        codec: Codec | None = None,
        watched: bool = False,
        **options: Any,
    ) -> None:
        self.store = MemoryBatchStore()
        self.executor = executor or ScriptedExecutor()
        self.witness = Witness()
        self.watch = IdleWatch(self.store)
        self.loop = ClaimLoop(
            Model(max_attempts=max_attempts),
            self.executor,
            self.store,
            policy or WhenIdle(8),
            codec or CeleryCodec(60_000),
            self.witness,
            batch_prefix="w-0",
            watch=self.watch if watched else None,
            **options,
        )
        self._started = False

    def start(self) -> None:
        self._started = True
        self.executor.start()
        self.watch.start()
        self.loop.start()

    def close(self) -> None:
        if self._started:
            self.watch.stop()
            self.loop.stop(0.0)
        self.executor.stop(0.0)

    def put(self, *task_ids: str, tier: Tier = Tier.PAID, **options: Any) -> None:
        """Queue requests, each with its own id as its input."""
        for task_id in task_ids:
            self.put_raw(our_message(task_id, msgspec.json.encode(task_id), tier=tier, **options), tier)

    def put_raw(self, message: bytes, tier: Tier = Tier.PAID) -> None:
        self.store.put(MODEL, tier, message)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until a change of the store makes the condition true."""
        deadline = time.monotonic() + LONG_S
        with self.store.changed:
            # Not everything that a condition may check notifies the store's waiters.
            while not self.store.changed.wait_for(condition, 0.02):
                assert time.monotonic() < deadline, "it never came true"

    def settled(self, *task_ids: str) -> list[Reply]:
        """The results of all of them, once they are stored."""
        keys = [Shard().result(each) for each in task_ids]
        self.until(lambda: all(key in self.store.results for key in keys))
        return [decode_reply(self.store.results[key]) for key in keys]

    def error(self, task_id: str) -> tuple[ErrorResult, Details]:
        (reply,) = self.settled(task_id)
        assert reply.status == "FAILURE"
        return decode_error(reply.result), decode_details(reply.bunch)

    def executor_inputs(self) -> list[Any]:
        """All inputs that reached the executor, in order."""
        return [msgspec.json.decode(each) for work in self.executor.taken for each in work.inputs]

    @property
    def waiting(self) -> int:
        return sum(len(self.store.queued(MODEL, tier)) for tier in Tier)


Make = Callable[..., Rig]

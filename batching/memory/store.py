"""The batch store of a process that has its frontend and its executors in it: no Redis, no other process.

    client ──submit──▶ queues ──claim──▶ lease ──finish──▶ results, and replies to whoever waits in this process
                         ▲                 │
                         └──give_back──────┘

It keeps the promises of `batching.claim.store.BatchStore`, and the same contract tests run over both. What it cannot
keep: when the process dies, all of it is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from batching.claim.lease import Verdict
from batching.claim.store import Blame, Claim, Keep, Settled, View
from batching.coalescing import Coalesced, Finished
from batching.memory.bells import Bells
from batching.memory.questions import End, Questions
from batching.memory.queues import ClaimLimits, ModelQueues, Queued
from batching.memory.timed import Timed, started_clock
from batching.policy import DEFAULT_AGEING_S, DEFAULT_SHARES, suspect_sizes
from config.schema import MAX_BATCH_BYTES

# Longer than any pause of a retry, and than any request may wait.
_LONGEST_MS = 1_000_000_000
# An answer that its caller has got is asked for again only by a caller who asks once more.
_HEARD_MS = 10_000

Replies = Sequence[tuple[str, bytes]]


class Letter(NamedTuple):
    """A dead letter: its message, the rank of its tier, and the record for operators (JSON)."""

    rank: int
    message: bytes
    record: bytes


@dataclass(slots=True)
class _Slot:
    rank: int
    verdict: Verdict
    item: Queued


class Lease(NamedTuple):
    model: str
    slots: list[_Slot | None]


class MemoryStore:
    """`batching.claim.store.BatchStore` in memory. Any thread or greenlet of the process may call it.

    Args:
        now_ms: epoch milliseconds; they should not go back.
        keep: limits of dead letters and of kept answers.
        lock: held in every call. Greenlets of one thread need none, since no call waits with it.
    """

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] | None = None,
        shares: Sequence[float] = DEFAULT_SHARES,
        ageing_s: float = DEFAULT_AGEING_S,
        keep: Keep | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.now_ms = now_ms or started_clock()
        self._keep = keep or Keep()
        # The state or outcome of each request whose id somebody may know.
        self.states: Timed[bytes] = Timed(self.now_ms, len)
        self.cancelled: Timed[bool] = Timed(self.now_ms)
        self.letters: dict[str, Letter] = {}
        self.leases: dict[str, Lease] = {}
        self.questions = Questions(
            self.now_ms, self._keep.answer_bytes, lambda task_id: bool(self.cancelled.pop(task_id))
        )
        self.on_replies: Callable[[Replies], None] = lambda replies: None
        self.lock: AbstractContextManager[Any] = threading.RLock() if lock is None else lock
        self._shares = tuple(shares)
        self._ageing_ms = int(ageing_s * 1000)
        self._models: dict[str, ModelQueues] = {}
        self.bells = Bells(self.lock)

    def enqueue(self, model: str, rank: int, item: Queued) -> None:
        """Queue a message at the end of its tier's queue, and ring."""
        with self.lock:
            self.queues(model).tiers[rank].append(item)
            self.ring(model)

    def queues(self, model: str) -> ModelQueues:
        queues = self._models.get(model)
        if queues is None:
            queues = self._models[model] = ModelQueues()
        return queues

    @property
    def waiting(self) -> int:
        """All requests that are not answered yet: queued, in a pause, or leased."""
        with self.lock:
            queued = sum(each.waiting + len(each.delayed) for each in self._models.values())
            return queued + sum(len(lease.slots) for lease in self.leases.values())

    @property
    def used_bytes(self) -> int:
        """The bytes of stored outcomes and of all requests that are not answered yet.

        Kept answers have a limit of their own (`Keep.answer_bytes`).
        """
        # While nothing is let in, nothing is stored, which would forget what has expired.
        self.states.expire()
        leased = sum(slot.item.size for lease in self.leases.values() for slot in lease.slots if slot is not None)
        queued = sum(each.bytes for each in self._models.values())
        return self.states.bytes + self.questions.waiting_bytes + leased + queued

    def take_all(self) -> list[tuple[str, int, Queued]]:
        """Empty the queues: model, rank and message of each request, in the order in which they would be served."""
        with self.lock:
            taken = self.questions.take_all()
            for name, queues in self._models.items():
                queues.wake(self.now_ms() + _LONGEST_MS)
                for rank, queue in enumerate(queues.tiers):
                    taken += [(name, rank, queue.pop()) for _ in range(len(queue))]
            return [each for each in taken if not each[2].header or not self.cancelled.pop(each[2].header.task_id)]

    def take_letters(self) -> dict[str, Letter]:
        """Empty the dead letters, by task id."""
        with self.lock:
            letters, self.letters = self.letters, {}
            return letters

    def look(self, model: str, paused: AbstractSet[int] = frozenset()) -> View:
        with self.lock:
            queues = self.queues(model)
            queues.wake(self.now_ms())
            return self._view(queues, paused)

    def claim(
        self,
        model: str,
        batch_id: str,
        size: int,
        max_attempts: int = 3,
        paused: AbstractSet[int] = frozenset(),
        *,
        margin_ms: int = 0,
        max_bytes: int = MAX_BATCH_BYTES,
        when_rung_s: float = 0.0,
        least: int = 0,
        calm_ms: int = 0,
    ) -> Claim:
        if when_rung_s:
            self.wait_for_bells((model,), when_rung_s)
        with self.lock:
            queues = self.queues(model)
            lease = self.leases.get(batch_id)
            if lease is None:
                now = self.now_ms()
                queues.wake(now)
                if least and not (view := self._view(queues, paused)).has(least, calm_ms):
                    return Claim(batch_id, (), view)
                limits = ClaimLimits(size, max_bytes, suspect_sizes(size, max_attempts), paused)
                aged = queues.aged(now, self._ageing_ms)
                taken = queues.take(limits, self._shares, aged, lambda item: self._verdict(item, now, margin_ms))
                if taken:
                    lease = self.leases[batch_id] = Lease(model, [_Slot(*each) for each in taken])
            view = self._view(queues, paused)
            if lease is None:
                return Claim(batch_id, (), view)
            if view.depth:
                self.ring(model)
            entries = tuple(
                slot.item.entry(position, slot.rank, slot.verdict)
                for position, slot in enumerate(lease.slots, 1)
                if slot is not None
            )
            return Claim(batch_id, entries, view)

    def finish(self, batch_id: str, outcomes: Sequence[Settled], *, last: bool) -> Finished:
        with self.lock:
            lease = self.leases.get(batch_id)
            if lease is None:
                return Finished(False)
            replies: list[tuple[str, bytes]] = []
            others: list[bytes] = []
            for each in outcomes:
                slot = lease.slots[each.position - 1]
                if slot is None:
                    continue
                lease.slots[each.position - 1] = None
                if each.dead_letter:
                    self._bury(each.task_id, Letter(slot.rank, slot.item.message, each.dead_letter))
                self._store(each.task_id, each.result, each.ttl_ms, heard=bool(each.reply_to) and not each.announce)
                if each.reply_to or each.announce:
                    replies.append((each.task_id, each.result))
                if each.asked is not None:
                    others += self._answer_others(each, each.asked, replies)
            if last:
                del self.leases[batch_id]
        if replies:
            self.on_replies(replies)
        return Finished(True, tuple(others))

    def put_aside(
        self, model: str, batch_id: str, pauses: Sequence[tuple[int, int]], *, last: bool, count_attempt: bool = True
    ) -> bool:
        with self.lock:
            lease = self.leases.get(batch_id)
            if lease is None:
                return False
            for position, pause_ms in pauses:
                slot = lease.slots[position - 1]
                if slot is None:
                    continue
                item = slot.item.again(0) if count_attempt else slot.item
                self.queues(model).put_aside(self.now_ms() + pause_ms, slot.rank, item, counted=count_attempt)
                lease.slots[position - 1] = None
                self._set_state(slot.item, "PENDING")
            if last:
                del self.leases[batch_id]
            return True

    def give_back(self, model: str, batch_id: str, blame: Blame, losses: int = 1) -> int:
        with self.lock:
            lease = self.leases.pop(batch_id, None)
            if lease is None:
                return -1
            slots = [slot for slot in lease.slots if slot is not None]
            for slot in reversed(slots):
                item = slot.item
                if blame is not Blame.NOTHING:
                    item = item.again(losses if blame is Blame.SUSPECT else 0)
                self.queues(model).tiers[slot.rank].return_to_head(item)
                self._set_state(item, "PENDING")
            if slots:
                self.ring(model)
            return len(slots)

    @property
    def is_told(self) -> bool:
        return True

    def wait_for_changes(self, models: Sequence[str], timeout_s: float) -> str | None:
        return self.wait_for_bells(models, timeout_s)

    def wait_for_bells(self, models: Sequence[str], timeout_s: float) -> str | None:
        return self.bells.wait(models, timeout_s)

    def leave_bell(self) -> None:
        """Do nothing: a wait leaves nothing open."""

    def ring(self, model: str) -> None:
        self.bells.ring(model)

    def peek(self, paused: Mapping[str, AbstractSet[int]]) -> AbstractSet[str]:
        with self.lock:
            now = self.now_ms()
            due = {model for model in paused if (at := self.queues(model).delayed) and at[0][0] <= now}
            return due | {model for model, ranks in paused.items() if self._view(self.queues(model), ranks).depth}

    def set_pending(self, task_id: str, ttl_ms: int) -> None:
        """Give a tracked request its state, from when it is queued."""
        self.states.set(task_id, state_of(task_id, "PENDING"), ttl_ms)

    def answer(self, task_id: str, result: bytes, ttl_ms: int, *, heard: bool) -> None:
        """Store a result that was not computed, and tell who waits for it. `heard`: nobody else knows the id."""
        self._store(task_id, result, ttl_ms, heard=heard)
        self.on_replies([(task_id, result)])

    def cancel(self, task_id: str, status: str) -> None:
        """Cancel a request whose stored state is `status`, if that is `PENDING`; its caller is told."""
        if status != "PENDING":
            return
        revoked = state_of(task_id, "REVOKED")
        with self.lock:
            self.states.replace(task_id, revoked)
            # No request outlives its state.
            self.cancelled.set(task_id, True, self.states.left_ms(task_id))
        self.on_replies([(task_id, revoked)])

    def take_back(self, task_id: str, keep_ms: int = _LONGEST_MS) -> None:
        """Nobody waits for the request any more: drop it at the claim, if that comes within `keep_ms`."""
        self.cancelled.set(task_id, True, keep_ms)

    def _view(self, queues: ModelQueues, paused: AbstractSet[int]) -> View:
        now, oldest, due = self.now_ms(), 0, 0
        depths = []
        for rank, queue in enumerate(queues.tiers):
            if rank in paused or not queue.items:
                depths.append(0)
                continue
            depths.append(len(queue.items))
            header = queue.items[0].header
            if header is None:
                continue
            if 0 < header.enqueued_ms <= now and not 0 < oldest <= header.enqueued_ms:
                oldest = header.enqueued_ms
            if header.deadline_ms and not 0 < due <= header.deadline_ms:
                due = header.deadline_ms
        return View(now, tuple(depths), oldest, due)

    def _verdict(self, item: Queued, now: int, margin_ms: int) -> Verdict:
        header = item.header
        if header is None:
            return Verdict.RUN
        if 0 < header.limit_ms <= now:
            return Verdict.EXPIRED
        if margin_ms > 0 and 0 < header.deadline_ms <= now + margin_ms:
            return Verdict.HOPELESS
        if len(self.cancelled) and self.cancelled.pop(header.task_id):
            return Verdict.CANCELLED
        self._set_state(item, "STARTED")
        return Verdict.RUN

    def _set_state(self, item: Queued, status: str) -> None:
        header = item.header
        if header is not None and header.tracked and header.task_id in self.states:
            self.states.replace(header.task_id, state_of(header.task_id, status))

    def _store(self, task_id: str, result: bytes, ttl_ms: int, *, heard: bool) -> None:
        if ttl_ms:
            self.states.set(task_id, result, min(ttl_ms, _HEARD_MS) if heard else ttl_ms)

    def _bury(self, task_id: str, letter: Letter) -> None:
        self.letters[task_id] = letter
        while len(self.letters) > self._keep.count:
            del self.letters[next(iter(self.letters))]

    def _answer_others(self, outcome: Settled, asked: Coalesced, replies: list[tuple[str, bytes]]) -> list[bytes]:
        """Settle who waits for the same answer; returns their rows."""
        ends, heir = self.questions.ended(asked, outcome.task_id, outcome.result)
        for end in ends:
            self._end(end, replies)
        if heir is not None:
            self.queues(asked.model).tiers[heir.rank].return_to_head(heir.item)
            self.ring(asked.model)
        return [end.row(outcome.position) for end in ends]

    def _end(self, end: End, replies: list[tuple[str, bytes]]) -> None:
        header = end.waiter.item.header
        if header is None or not end.result:
            return
        self._store(header.task_id, end.result, header.result_ttl_ms, heard=not header.tracked)
        replies.append((header.task_id, end.result))

    def withdraw(self, model: str, rank: int, task_id: str) -> Queued | None:
        """Take a waiting message out of its queue."""
        return self.queues(model).tiers[rank].withdraw(task_id)


def state_of(task_id: str, status: str) -> bytes:
    """The stored state of a request that has no outcome."""
    return (
        f'{{"status":"{status}","result":null,"traceback":null,"children":[],"date_done":null,"task_id":"{task_id}"}}'
    ).encode()

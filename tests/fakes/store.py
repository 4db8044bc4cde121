"""The batch store without a Redis: the same raw messages, in this process's memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import msgspec

from batching.claim.lease import Entry, Verdict
from batching.claim.store import Blame, Claim, Settled, View
from batching.coalescing import Finished
from batching.fast_header import NO_KEY, read_fast_header
from batching.policy import DEFAULT_AGEING_S, DEFAULT_SHARES, allocate, fair_pick, guaranteed, suspect_sizes
from batching.policy.faults.retry import MOST_LOSSES
from config.keys import Shard
from config.schema import MAX_BATCH_BYTES
from config.tiers import TIERS, Tier
from tests.fakes.attempts import losses, with_attempt

_MAX_INLINE = 65536
_MAX_DROPPED = 256
_WINDOW = 512
_WINDOW_BYTES = 16 * 1024 * 1024


def epoch_ms() -> int:
    return time.time_ns() // 1_000_000


class Letter(NamedTuple):
    """A dead letter."""

    rank: int
    message: bytes
    record: bytes


@dataclass(slots=True)
class _Slot:
    rank: int
    verdict: Verdict
    message: bytes


@dataclass(slots=True)
class _Lease:
    model: str
    slots: list[_Slot | None]


@dataclass
class _Model:
    """The last of each queue is its head, as in the lists of Redis."""

    queues: tuple[list[bytes], ...] = field(default_factory=lambda: tuple([] for _ in TIERS))
    delayed: dict[tuple[bool, int, bytes], int] = field(default_factory=dict)
    credits: tuple[float, ...] = (0.0,) * len(TIERS)
    bell: bool = False


class MemoryBatchStore:
    """A `batching.claim.store.BatchStore`, with methods for a test to fill and inspect it.

    Args:
        before, after: called with the name of each call, before and after its effect. The caller gets their errors:
            a Redis that is away, and one whose reply was lost.
    """

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] = epoch_ms,
        shares: Sequence[float] = DEFAULT_SHARES,
        ageing_s: float = DEFAULT_AGEING_S,
        before: Callable[[str], None] = lambda call: None,
        after: Callable[[str], None] = lambda call: None,
    ) -> None:
        self.results: dict[str, bytes] = {}
        self.stored: list[str] = []
        self.replies: list[tuple[str, list[bytes]]] = []
        self.letters: dict[str, Letter] = {}
        self.cancelled: set[str] = set()
        self.leases: dict[str, _Lease] = {}
        self.before = before
        self.after = after
        self.changed = threading.Condition(threading.RLock())
        self._now_ms = now_ms
        self._shares = tuple(shares)
        self._ageing_ms = int(ageing_s * 1000)
        self._models: dict[str, _Model] = {}

    def put(self, model: str, tier: Tier, message: bytes) -> None:
        """Queue a message as a frontend does: at the tail of the queue, with a ring."""
        with self.changed:
            here = self._model(model)
            here.queues[tier.rank].insert(0, message)
            here.bell = True
            self.changed.notify_all()

    def queued(self, model: str, tier: Tier) -> list[bytes]:
        """The queued messages, head first."""
        with self.changed:
            return self._model(model).queues[tier.rank][::-1]

    def put_aside_count(self, model: str) -> int:
        return len(self._model(model).delayed)

    def end_pauses(self, model: str) -> None:
        """Make all requests that were put aside due."""
        with self.changed:
            here = self._model(model)
            here.delayed = dict.fromkeys(here.delayed, 0)

    def look(self, model: str, paused: AbstractSet[int] = frozenset()) -> View:
        self.before("look")
        with self.changed:
            self._wake(model)
            view = self._view(model, paused)
        self.after("look")
        return view

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
    ) -> Claim:
        self.before("claim")
        with self.changed:
            if batch_id not in self.leases:
                self._wake(model)
                taken = self._take(
                    self._model(model), size, suspect_sizes(size, max_attempts), paused, margin_ms, max_bytes
                )
                if taken:
                    self.leases[batch_id] = _Lease(model, list(taken))
                    here = self._model(model)
                    here.bell = here.bell or self._view(model, paused).depth > 0
            slots = self.leases[batch_id].slots if batch_id in self.leases else []
            entries = tuple(
                Entry(position, slot.rank, slot.verdict, slot.message)
                for position, slot in enumerate(slots, 1)
                if slot is not None
            )
            claim = Claim(batch_id, entries, self._view(model, paused))
        self.after("claim")
        return claim

    def finish(self, batch_id: str, outcomes: Sequence[Settled], *, last: bool) -> Finished:
        self.before("finish")
        with self.changed:
            lease = self.leases.get(batch_id)
            if lease is not None:
                self._store(lease, outcomes)
                if last:
                    del self.leases[batch_id]
            self.changed.notify_all()
        self.after("finish")
        return Finished(lease is not None)

    def put_aside(
        self, model: str, batch_id: str, pauses: Sequence[tuple[int, int]], *, last: bool, count_attempt: bool = True
    ) -> bool:
        self.before("put_aside")
        with self.changed:
            lease = self.leases.get(batch_id)
            if lease is not None:
                for position, pause_ms in pauses:
                    slot = lease.slots[position - 1]
                    if slot is not None:
                        message = with_attempt(slot.message, 0) if count_attempt else slot.message
                        self._model(model).delayed[count_attempt, slot.rank, message] = self._now_ms() + pause_ms
                        lease.slots[position - 1] = None
                        self._set_state(message, "PENDING")
                if last:
                    del self.leases[batch_id]
        self.after("put_aside")
        return lease is not None

    def give_back(self, model: str, batch_id: str, blame: Blame, losses: int = 1) -> int:
        self.before("give_back")
        with self.changed:
            lease = self.leases.pop(batch_id, None)
            here = self._model(model)
            slots = [slot for slot in lease.slots if slot is not None] if lease else []
            for slot in reversed(slots):
                message = slot.message
                if blame is not Blame.NOTHING:
                    message = with_attempt(message, losses if blame is Blame.SUSPECT else 0)
                here.queues[slot.rank].append(message)
                self._set_state(message, "PENDING")
            here.bell = here.bell or bool(slots)
            self.changed.notify_all()
        self.after("give_back")
        return len(slots) if lease is not None else -1

    @property
    def is_told(self) -> bool:
        return False

    def wait_for_changes(self, models: Sequence[str], timeout_s: float) -> str | None:
        return self.wait_for_bells(models, timeout_s)

    def wait_for_bells(self, models: Sequence[str], timeout_s: float) -> str | None:
        self.before("wait_for_bells")
        with self.changed:
            self.changed.wait_for(lambda: any(self._model(each).bell for each in models), timeout_s)
            rung = next((each for each in models if self._model(each).bell), None)
            if rung is not None:
                self._model(rung).bell = False
        return rung

    def leave_bell(self) -> None:
        """Do nothing: there is no open BLPOP."""

    def ring(self, model: str) -> None:
        with self.changed:
            self._model(model).bell = True
            self.changed.notify_all()

    def peek(self, paused: Mapping[str, AbstractSet[int]]) -> AbstractSet[str]:
        self.before("peek")
        with self.changed:
            due = {model for model in paused if any(at <= self._now_ms() for at in self._model(model).delayed.values())}
            return due | {model for model, ranks in paused.items() if self._view(model, ranks).depth}

    def _model(self, name: str) -> _Model:
        return self._models.setdefault(name, _Model())

    def _view(self, model: str, paused: AbstractSet[int]) -> View:
        queues = [[] if rank in paused else queue for rank, queue in enumerate(self._model(model).queues)]
        stamps = [read_fast_header(queue[-1]) for queue in queues if queue]
        known = [stamp.enqueued_ms for stamp in stamps if stamp and 0 < stamp.enqueued_ms <= self._now_ms()]
        due = [stamp.deadline_ms for stamp in stamps if stamp and stamp.deadline_ms]
        depths = tuple(len(queue) for queue in queues)
        return View(self._now_ms(), depths, min(known, default=0), min(due, default=0))

    def _wake(self, model: str) -> None:
        here = self._model(model)
        due = [(at, each) for each, at in here.delayed.items() if at <= self._now_ms()]
        for _, (retry, rank, message) in sorted(due):
            del here.delayed[retry, rank, message]
            here.queues[rank].append(message)

    def _take(
        self, here: _Model, size: int, sizes: Sequence[int], paused: AbstractSet[int], margin_ms: int, max_bytes: int
    ) -> list[_Slot]:
        def limit(message: bytes) -> int | None:
            lost = losses(message)
            return sizes[-1 if lost >= MOST_LOSSES else min(lost, len(sizes)) - 1] if lost else None

        open_to = {rank: queue for rank, queue in enumerate(here.queues) if rank not in paused}
        suspects = next((rank for rank, queue in open_to.items() if queue and limit(queue[-1])), None)
        if suspects is not None:
            size = min(size, limit(here.queues[suspects][-1]) or size)
        depths = [len(open_to.get(rank, ())) if suspects in {None, rank} else 0 for rank in range(len(here.queues))]
        if not sum(depths):
            return []
        aged = [self._aged(queue) for queue in here.queues]
        takes, here.credits = _shared(depths, size, here.credits, guaranteed(self._shares, aged))
        slots: list[_Slot] = []
        closed = False
        taken = dropped = read = 0

        def pop(rank: int, want: int) -> int:
            nonlocal size, closed, taken, dropped, read
            queue = here.queues[rank]
            chosen, last = 0, False
            while want > 0 and dropped < _MAX_DROPPED and queue and not closed:
                if not chosen:
                    chosen = want
                    if suspects is None:
                        chosen, last = _bring_to_the_front(queue, want, max_bytes - read, alone=not slots)
                    if not chosen:
                        closed = True
                        return 0
                chosen -= 1
                closed = last and not chosen
                here_limit = limit(queue[-1])
                read += len(queue[-1])
                too_much = read > max_bytes and bool(slots)
                if bool(here_limit) != (suspects is not None) or (here_limit and taken >= here_limit) or too_much:
                    closed = True
                    return 0
                if here_limit and here_limit < size:
                    size = here_limit
                    want = size - taken
                message = queue.pop()
                verdict = self._verdict(message, margin_ms)
                slots.append(_Slot(rank, verdict, message))
                if verdict is Verdict.RUN:
                    want -= 1
                    taken += 1
                else:
                    dropped += 1
            return 0 if closed else want

        short = sum(pop(rank, take) for rank, take in enumerate(takes))
        for rank in range(len(takes)):
            if dropped and short > 0 and rank in open_to:
                short = pop(rank, short)
        return slots

    def _aged(self, queue: Sequence[bytes]) -> bool:
        stamp = read_fast_header(queue[-1]) if queue else None
        if stamp is None:
            return False
        age_ms = self._now_ms() - stamp.enqueued_ms
        return age_ms < 0 or age_ms >= self._ageing_ms

    def _verdict(self, message: bytes, margin_ms: int) -> Verdict:
        stamp = read_fast_header(message)
        if stamp is None:
            return Verdict.RUN
        if 0 < stamp.limit_ms <= self._now_ms():
            return Verdict.EXPIRED
        if margin_ms > 0 and 0 < stamp.deadline_ms <= self._now_ms() + margin_ms:
            return Verdict.HOPELESS
        if stamp.task_id in self.cancelled:
            self.cancelled.discard(stamp.task_id)
            return Verdict.CANCELLED
        self._set_state(message, "STARTED")
        return Verdict.RUN

    def _set_state(self, message: bytes, status: str) -> None:
        stamp = read_fast_header(message)
        if stamp is None or not stamp.tracked:
            return
        key = Shard().result(stamp.task_id)
        if key in self.results:
            self.results[key] = state_of(stamp.task_id, status)

    def _store(self, lease: _Lease, outcomes: Sequence[Settled]) -> None:
        replies: dict[str, list[bytes]] = {}
        for each in outcomes:
            slot = lease.slots[each.position - 1]
            if slot is None:
                continue
            if each.dead_letter:
                self.letters[each.task_id] = Letter(slot.rank, slot.message, each.dead_letter)
            if each.ttl_ms:
                self.results[Shard().result(each.task_id)] = each.result
                self.stored.append(each.task_id)
            if each.reply_to:
                by_reference = msgspec.json.encode({"task_id": each.task_id, "status": "STORED"})
                replies.setdefault(each.reply_to, []).append(
                    each.result if len(each.result) <= _MAX_INLINE else by_reference
                )
            lease.slots[each.position - 1] = None
        self.replies += replies.items()


def _bring_to_the_front(queue: list[bytes], want: int, room: int, *, alone: bool) -> tuple[int, bool]:
    """Move the messages whose turn it is, by key, to the front, which is the end of the list.

    `room`: the bytes of messages that fit into the batch; an empty one (`alone`) takes one message whatever its size.
    Returns how many messages to take, and whether they are the batch's last.
    """
    window = _window(queue, room + _WINDOW_BYTES)
    fits = sum(map(len, window)) <= room
    if (len(queue) <= want and fits) or want >= _WINDOW:
        return want, False
    keys = [_key(message) for message in window]
    before = [0, *accumulate(map(len, window))]
    # Those that would be taken if nothing were shared, and the one that did not fit.
    first = [key for key, read in zip(keys[:want], before, strict=False) if read <= room]
    if set(first) == {NO_KEY}:
        return want, False
    if len(set(first)) == want if before[len(first)] <= room else len(first) == 1:
        return want, False
    chosen = fair_pick(keys, want)
    taken = chosen if fits else _fitting(chosen, window, keys, room, alone=alone)
    left = [each for position, each in enumerate(window) if position not in set(taken)]
    queue[-len(keys) :] = ([window[position] for position in taken] + left)[::-1]
    return len(taken), len(taken) < len(chosen)


def _fitting(
    chosen: Sequence[int], window: Sequence[bytes], keys: Sequence[str], room: int, *, alone: bool
) -> list[int]:
    """Those of `chosen` that fit, in their order: the oldest, then by the bytes of their key up to them."""
    finish: dict[int, int] = {}
    sums: Counter[str] = Counter()
    for position in chosen:
        sums[keys[position]] += len(window[position])
        finish[position] = sums[keys[position]]
    finish[chosen[0]] = 0
    taken: list[int] = []
    read = 0
    for position in sorted(chosen, key=finish.__getitem__):
        read += len(window[position])
        if read > room and (taken or not alone):
            break
        taken.append(position)
    return taken


def _window(queue: Sequence[bytes], most_bytes: int) -> list[bytes]:
    """The messages that a claim looks at, first come first."""
    window: list[bytes] = []
    read = 0
    for message in reversed(queue[-_WINDOW:]):
        if window and read > most_bytes:
            break
        window.append(message)
        read += len(message)
    return window


def _key(message: bytes) -> str:
    stamp = read_fast_header(message)
    return stamp.key if stamp else NO_KEY


def _shared(
    depths: Sequence[int], size: int, credits: tuple[float, ...], shares: Sequence[float]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    allocation = allocate(depths, size, credits, shares)
    return allocation.takes, allocation.credits


def state_of(task_id: str, status: str) -> bytes:
    return (
        f'{{"status":"{status}","result":null,"traceback":null,"children":[],"date_done":null,"task_id":"{task_id}"}}'
    ).encode()

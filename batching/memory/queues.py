"""The waiting requests of one model in memory: which of them are in the next batch.

The rules are those of `batching/lua/claim.lua`: tiers by preference with ageing, keys by turns, suspects by themselves,
a limit of bytes. Random traces run through both and must agree (`tests/contract/test_batch_store_traces.py`).
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import accumulate, count, islice
from typing import Protocol

from batching.claim.lease import Entry, Verdict
from batching.fast_header import NO_KEY, FastHeader, read_fast_header
from batching.memory.attempts import counted, losses, with_attempt, with_header
from batching.policy import allocate, fair_pick, guaranteed
from batching.policy.faults.retry import MOST_LOSSES
from batching.request import Request
from config.tiers import TIERS

_MAX_DROPPED = 256
_WINDOW = 512
_WINDOW_BYTES = 16 * 1024 * 1024
_numbers = count()


class Source(Protocol):
    """A request of this process. Its message is written only when somebody has to read it: most are never."""

    def message(self, header: FastHeader) -> bytes:
        """The message with that fast header, as a frontend would have sent it."""

    def request(self, header: FastHeader, rank: int, position: int) -> Request:
        """The request, as decoding that message would give it."""


class Queued:
    """A waiting request: a message as it came, or a `source` with its fast header. It is never changed.

    `header` is None for a message that is not of ours; `size` is about the length of the message.
    """

    __slots__ = ("header", "key", "lost", "raw", "size", "source")

    def __init__(
        self, header: FastHeader | None, size: int, *, raw: bytes = b"", source: Source | None = None, lost: int = 0
    ) -> None:
        self.header = header
        self.size = size
        self.raw = raw
        self.source = source
        self.lost = lost
        self.key = NO_KEY if header is None else header.key

    @classmethod
    def of(cls, message: bytes) -> Queued:
        header = read_fast_header(message)
        lost = losses(message) if header is None else header.lost
        return cls(header, len(message), raw=message, lost=lost)

    @property
    def message(self) -> bytes:
        return self.raw if self.source is None or self.header is None else self.source.message(self.header)

    def entry(self, position: int, rank: int, verdict: Verdict) -> Entry:
        """It as a member of a lease."""
        if self.source is None or self.header is None:
            return Entry(position, rank, verdict, self.raw)
        return Entry(position, rank, verdict, b"", self.source.request(self.header, rank, position))

    def again(self, losses: int) -> Queued:
        """It with one more failed delivery; `losses`: it then has at least this many losses."""
        if self.source is None or self.header is None:
            return Queued.of(with_attempt(self.raw, losses))
        return self.with_header(counted(self.header, losses))

    def with_header(self, header: FastHeader) -> Queued:
        """It with another fast header of the same request."""
        if self.source is None:
            return Queued.of(with_header(self.raw, header))
        return Queued(header, self.size, source=self.source, lost=header.lost)


class TierQueue:
    """One queue, its head first. `held` counts its messages by key, `bytes` is the sum of their lengths."""

    def __init__(self) -> None:
        self.items: deque[Queued] = deque()
        self.held: Counter[str] = Counter()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def head(self) -> Queued | None:
        return self.items[0] if self.items else None

    def append(self, item: Queued) -> None:
        self.items.append(item)
        self._count(item)

    def return_to_head(self, item: Queued) -> None:
        self.items.appendleft(item)
        self._count(item)

    def pop(self) -> Queued:
        return self._forget(self.items.popleft())

    def withdraw(self, task_id: str) -> Queued | None:
        """Take the message of a request out, wherever it is; None if it is not here."""
        found = next((each for each in self.items if each.header and each.header.task_id == task_id), None)
        if found is None:
            return None
        self.items.remove(found)
        return self._forget(found)

    def bring_to_the_front(self, want: int, room: int, *, alone: bool) -> tuple[int, bool]:
        """Move the messages whose turn it is, by key, to the head.

        `room`: the bytes of messages that fit into the batch; an empty one (`alone`) takes one message whatever its
        size. Returns how many messages to take, and whether they are the batch's last.
        """
        if not self.held or (len(self.items) <= want and self.bytes <= room) or want >= _WINDOW:
            return want, False
        window = self._window(room + _WINDOW_BYTES)
        sizes = [each.size for each in window]
        fits = sum(sizes) <= room
        if len(self.items) <= want and fits:
            return want, False
        keys = [each.key for each in window]
        before = [0, *accumulate(sizes)]
        # Those that would be taken if nothing were shared, and the one that did not fit.
        first = [key for key, read in zip(keys[:want], before, strict=False) if read <= room]
        if set(first) == {NO_KEY}:
            return want, False
        if len(set(first)) == want if before[len(first)] <= room else len(first) == 1:
            return want, False
        chosen = fair_pick(keys, want)
        taken = chosen if fits else _fitting(chosen, sizes, keys, room, alone=alone)
        among = set(taken)
        left = [each for position, each in enumerate(window) if position not in among]
        for _ in window:
            self.items.popleft()
        self.items.extendleft(reversed([*(window[position] for position in taken), *left]))
        return len(taken), len(taken) < len(chosen)

    def _window(self, most_bytes: int) -> list[Queued]:
        """The messages that a claim looks at, first come first."""
        window: list[Queued] = []
        read = 0
        for item in islice(self.items, _WINDOW):
            if window and read > most_bytes:
                break
            window.append(item)
            read += item.size
        return window

    def _count(self, item: Queued) -> None:
        self.bytes += item.size
        if item.key != NO_KEY:
            self.held[item.key] += 1

    def _forget(self, item: Queued) -> Queued:
        self.bytes -= item.size
        key = item.key
        if key != NO_KEY:
            self.held[key] -= 1
            if not self.held[key]:
                del self.held[key]
        return item


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """The limits of one claim: requests to run, bytes, the sizes of suspects' batches, and tiers that are paused."""

    size: int
    max_bytes: int
    suspects: Sequence[int]
    paused: AbstractSet[int]

    def of_suspect(self, item: Queued) -> int | None:
        """The largest batch that this message may be in, if it is a suspect."""
        if not item.lost:
            return None
        return self.suspects[-1 if item.lost >= MOST_LOSSES else min(item.lost, len(self.suspects)) - 1]


@dataclass
class ModelQueues:
    """The queues of one model, highest tier first, and its requests in a pause."""

    tiers: tuple[TierQueue, ...] = field(default_factory=lambda: tuple(TierQueue() for _ in TIERS))
    # (due in ms, an attempt was counted, rank, message or id, number, the request): the earliest first.
    delayed: list[tuple[int, bool, int, bytes, int, Queued]] = field(default_factory=list)
    credits: tuple[float, ...] = (0.0,) * len(TIERS)

    @property
    def waiting(self) -> int:
        return sum([len(each.items) for each in self.tiers])

    @property
    def bytes(self) -> int:
        """The bytes of all of its requests."""
        return sum(each.bytes for each in self.tiers) + sum(each[-1].size for each in self.delayed)

    def aged(self, now_ms: int, ageing_ms: int) -> list[bool]:
        """For each tier, whether its oldest request has waited for `ageing_ms`."""
        headers = [queue.head.header if queue.head else None for queue in self.tiers]
        # In the future: the clock has gone back since.
        return [each is not None and not 0 <= now_ms - each.enqueued_ms < ageing_ms for each in headers]

    def put_aside(self, due_ms: int, rank: int, item: Queued, *, counted: bool) -> None:
        """Keep a request until its pause is over."""
        name = item.raw or (item.header.task_id.encode() if item.header else b"")
        heapq.heappush(self.delayed, (due_ms, counted, rank, name, next(_numbers), item))

    def wake(self, now_ms: int) -> None:
        """Bring requests whose pause is over back to the heads of their queues."""
        while self.delayed and self.delayed[0][0] <= now_ms:
            _, _, rank, _, _, item = heapq.heappop(self.delayed)
            self.tiers[rank].return_to_head(item)

    def take(
        self, limits: ClaimLimits, shares: Sequence[float], aged: Sequence[bool], judge: Callable[[Queued], Verdict]
    ) -> list[tuple[int, Verdict, Queued]]:
        """Pop the members of the next batch: rank, verdict and message of each. Only those to run count."""
        heads = {rank: queue.head for rank, queue in enumerate(self.tiers) if rank not in limits.paused}
        suspects = next((rank for rank, head in heads.items() if head and limits.of_suspect(head)), None)
        size = limits.size
        if suspects is not None:
            head = self.tiers[suspects].head
            assert head is not None
            size = min(size, limits.of_suspect(head) or size)
        depths = [
            len(queue) if rank in heads and suspects in {None, rank} else 0 for rank, queue in enumerate(self.tiers)
        ]
        if not sum(depths):
            return []
        allocation = allocate(depths, size, self.credits, guaranteed(shares, aged))
        self.credits = allocation.credits
        claim = _Taking(limits, judge, size, suspects is not None)
        short = sum(claim.pop(rank, self.tiers[rank], take) for rank, take in enumerate(allocation.takes))
        for rank in heads:
            if claim.dropped and short > 0:
                short = claim.pop(rank, self.tiers[rank], short)
        return claim.slots


class _Taking:
    """One claim under way."""

    def __init__(self, limits: ClaimLimits, judge: Callable[[Queued], Verdict], size: int, suspects: bool) -> None:
        self.slots: list[tuple[int, Verdict, Queued]] = []
        self.dropped = 0
        self._limits = limits
        self._judge = judge
        self._size = size
        self._suspects = suspects
        self._closed = False
        self._taken = 0
        self._read = 0

    def pop(self, rank: int, queue: TierQueue, want: int) -> int:
        """Take up to `want` messages to run; returns how many places are left."""
        chosen, last = 0, False
        limits, most = self._limits, self._limits.max_bytes
        while want > 0 and self.dropped < _MAX_DROPPED and not self._closed:
            item = queue.head
            if item is None:
                break
            if not chosen:
                chosen = want
                if not self._suspects:
                    chosen, last = queue.bring_to_the_front(want, most - self._read, alone=not self.slots)
                    item = queue.items[0]
                if not chosen:
                    self._closed = True
                    return 0
            chosen -= 1
            self._closed = last and not chosen
            limit = limits.of_suspect(item)
            self._read += item.size
            too_much = self._read > most and bool(self.slots)
            if bool(limit) != self._suspects or (limit and self._taken >= limit) or too_much:
                self._closed = True
                return 0
            if limit and limit < self._size:
                self._size = limit
                want = limit - self._taken
            queue.pop()
            verdict = self._judge(item)
            self.slots.append((rank, verdict, item))
            if verdict is Verdict.RUN:
                want -= 1
                self._taken += 1
            else:
                self.dropped += 1
        return 0 if self._closed else want


def _fitting(chosen: Sequence[int], sizes: Sequence[int], keys: Sequence[str], room: int, *, alone: bool) -> list[int]:
    """Those of `chosen` that fit, in their order: the oldest, then by the bytes of their key up to them."""
    finish: dict[int, int] = {}
    sums: Counter[str] = Counter()
    for position in chosen:
        sums[keys[position]] += sizes[position]
        finish[position] = sums[keys[position]]
    finish[chosen[0]] = 0
    taken: list[int] = []
    read = 0
    for position in sorted(chosen, key=finish.__getitem__):
        read += sizes[position]
        if read > room and (taken or not alone):
            break
        taken.append(position)
    return taken

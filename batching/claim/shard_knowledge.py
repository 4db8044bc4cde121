"""What a worker knows of the waiting requests of one model in all shards: seen at each claim and look.

    claim, look ──saw──▶ per shard: depths, ages, when ──plan──▶ the parts of the next batch
         │                                              └─view──▶ the sum, as the policy sees it
         └──took──▶ turns, bytes of a message, suspects, requests per second

It only calculates (the rule is `batching.policy.sharding`), and every method may be called by any thread. Moments are
seconds on one clock of this process. Times of a server are converted with what its clock said when it was seen last, so
the clocks of servers may differ.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from batching.claim.calls import Seen
from batching.claim.lease import Entry, Verdict
from batching.claim.values import View
from batching.fast_header import key_of
from batching.memory.attempts import losses
from batching.policy.sharding import Part, ShardView, Sharing
from config.tiers import TIERS

# An average over about eight claims.
_GAIN = 1 / 8
# The time over which requests per second are counted.
_RATE_S = 2.0
_RANKS = range(len(TIERS))
# Bound here, because access to an enum member costs a call.
_RUN = Verdict.RUN
_NOTHING = ShardView((0,) * len(TIERS), (math.inf,) * len(TIERS))


@dataclass(slots=True, eq=False)
class _Known:
    """One shard. `depths` are those that were `seen`, less what has been planned since."""

    seen: Seen
    depths: list[int] = field(default_factory=lambda: [0] * len(TIERS))
    seen_at: float = -math.inf
    asked_at: float = -math.inf
    message_bytes: float = 0.0
    has_suspects: bool = False
    rate: float = 0.0
    rate_at: float = 0.0

    def oldest_at(self, rank: int) -> float:
        """When the oldest request of a tier came; infinite if it is not known."""
        oldest_ms = self.seen.oldest_ms[rank]
        if not 0 < oldest_ms <= self.seen.now_ms:
            return math.inf
        return self.seen_at - (self.seen.now_ms - oldest_ms) / 1000


def _seen_last(known: _Known) -> tuple[float, int]:
    return known.seen_at, known.seen.now_ms


class ShardKnowledge:
    """One model. Shards are named by their numbers; `groups` has the number of the server of each."""

    def __init__(self, groups: Sequence[int], ageing_s: float, shares: Sequence[float]) -> None:
        unseen = Seen(0, (0,) * len(TIERS), (0,) * len(TIERS), (0,) * len(TIERS))
        self._groups = groups
        self._known = [_Known(unseen) for _ in groups]
        self._sharing = Sharing(ageing_s, shares)
        self._lock = threading.Lock()

    def saw(self, shard: int, seen: Seen, now: float) -> None:
        with self._lock:
            known = self._known[shard]
            known.seen, known.depths, known.seen_at = seen, list(seen.depths), now

    def unseen_for(self, seconds: float, now: float) -> list[int]:
        """The shards that were not seen for so long."""
        return [number for number, known in enumerate(self._known) if now - known.seen_at >= seconds]

    def waiting(self, asked: Collection[int], paused: AbstractSet[int]) -> int:
        """How many requests wait in the shards that can be `asked`, as far as is known."""
        return sum(
            depth
            for number in asked
            for rank, depth in enumerate(self._known[number].depths)
            if depth and rank not in paused
        )

    def plan(self, asked: Collection[int], size: int, paused: AbstractSet[int], now: float) -> tuple[Part, ...]:
        """The parts of a batch from the shards that can be `asked`. What is planned counts as taken."""
        asked = frozenset(asked)
        with self._lock:
            suspects = next((number for number in sorted(asked) if self._known[number].has_suspects), None)
            if suspects is not None:
                # They are claimed alone.
                parts: tuple[Part, ...] = (Part(suspects, size),)
            else:
                views = [
                    self._shard_view(known, paused) if number in asked and any(known.depths) else _NOTHING
                    for number, known in enumerate(self._known)
                ]
                parts = self._sharing.plan(views, size, now)
            for part in parts:
                self._reserve(part, paused)
                self._known[part.shard].asked_at = now
        return parts

    def took(self, shard: int, entries: Sequence[Entry], now: float) -> bool:
        """The entries that a claim brought; returns whether they are suspects of an executor's death."""
        with self._lock:
            known = self._known[shard]
            known.asked_at = now
            # A claim has only suspects, or none.
            known.has_suspects = bool(entries) and losses(entries[0].message) > 0
            size = len(entries)
            self._count(known, size, now)
            if not size:
                return False
            each = sum([len(entry.message) for entry in entries]) / size
            known.message_bytes += (each - known.message_bytes) * (_GAIN if known.message_bytes else 1.0)
            for rank in _RANKS:
                keys = [key_of(entry.message) for entry in entries if entry.rank == rank and entry.verdict is _RUN]
                if keys:
                    self._sharing.took(shard, rank, len(keys), len(set(keys)))
            return known.has_suspects

    def bytes_of(self, parts: Sequence[Part]) -> float:
        """The bytes that the messages of these parts will have, as far as is known."""
        return sum(self._known[part.shard].message_bytes * part.size for part in parts)

    def rates(self, now: float) -> list[float]:
        """The requests per second that were claimed of each shard lately."""
        return [known.rate * math.exp((known.rate_at - now) / _RATE_S) for known in self._known]

    def view(self, asked: Collection[int], paused: AbstractSet[int]) -> View:
        """All that waits, by the clock of the server that was seen last."""
        depths = [0] * len(TIERS)
        oldest: list[int] = []
        due: list[int] = []
        ranks = [rank for rank in _RANKS if rank not in paused]
        with self._lock:
            latest = max((self._known[number] for number in asked), key=_seen_last)
            group = self._groups[self._known.index(latest)]
            for number in asked:
                known = self._known[number]
                seen = known.seen
                shift = 0 if self._groups[number] == group else self._ahead_ms(latest, known)
                for rank in ranks:
                    if known.depths[rank]:
                        depths[rank] += known.depths[rank]
                        # As `Seen.view` has it.
                        if 0 < seen.oldest_ms[rank] <= seen.now_ms:
                            oldest.append(seen.oldest_ms[rank] + shift)
                        if seen.due_ms[rank]:
                            due.append(seen.due_ms[rank] + shift)
        return View(int(latest.seen.now_ms), tuple(depths), min(oldest, default=0), min(due, default=0))

    def put_back(self, shard: int, entries: Sequence[Entry]) -> None:
        """The entries of a claim wait again."""
        with self._lock:
            for entry in entries:
                self._known[shard].depths[entry.rank] += 1

    @staticmethod
    def _ahead_ms(latest: _Known, other: _Known) -> int:
        """By how much the clock of one server is ahead of the other's."""
        return round(latest.seen.now_ms - other.seen.now_ms - (latest.seen_at - other.seen_at) * 1000)

    @staticmethod
    def _shard_view(known: _Known, paused: AbstractSet[int]) -> ShardView:
        depths = tuple(0 if rank in paused else known.depths[rank] for rank in _RANKS)
        return ShardView(
            depths, tuple(known.oldest_at(rank) if depths[rank] else math.inf for rank in _RANKS), known.asked_at
        )

    def _reserve(self, part: Part, paused: AbstractSet[int]) -> None:
        depths, left = self._known[part.shard].depths, part.size
        for rank in _RANKS:
            if rank not in paused:
                taken = min(depths[rank], left if part.takes is None else part.takes[rank])
                depths[rank] -= taken
                left -= taken

    @staticmethod
    def _count(known: _Known, size: int, now: float) -> None:
        known.rate = known.rate * math.exp((known.rate_at - now) / _RATE_S) + size / _RATE_S
        known.rate_at = now

"""Fills one batch from several shards: which of them are asked, and for how many requests of each tier.

As many as wait: every shard that has some is asked for all of them.
More wait than the batch holds, so it is shared out twice:
    between tiers    as in one queue (`batching.policy.tiers`), by what waits in all shards together
    between shards   inside a tier they take turns. The shard that has had least is asked first, for as many as the tier
                     gets, and what is left goes to the next: a batch of few leases. A shard with several keys has a
                     turn for each of them, so that keys are served alike wherever they are. One that has not been
                     asked for the ageing time, while something waits there, does not wait for its turn: such shards
                     share the places equally.

Turns are start-time fair queueing (Goyal, Vin and Cheng, 1996): whoever had nothing to be served saves up nothing, and
is next. So what the claim script decides inside a shard (tiers, keys, order) is exact; between shards the tiers are
exact for what is known, and keys are served alike over some batches rather than in each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batching.policy.tiers import DEFAULT_AGEING_S, DEFAULT_SHARES, allocate, guaranteed


@dataclass(frozen=True, slots=True)
class ShardView:
    """The waiting requests of one shard, as far as they are known. Moments are seconds on any one clock.

    `oldest_at` is per tier, infinite where nothing waits or its age is not known. The shard was asked for requests at
    `asked_at`.
    """

    depths: tuple[int, ...]
    oldest_at: tuple[float, ...]
    asked_at: float = -math.inf

    @property
    def depth(self) -> int:
        return sum(self.depths)

    @property
    def top(self) -> int:
        """The rank of the highest tier that waits; the number of tiers if none does."""
        return next((rank for rank, depth in enumerate(self.depths) if depth), len(self.depths))


@dataclass(frozen=True, slots=True)
class Part:
    """One shard's part of a batch, up to `size` requests: `takes` of each tier; None: as the shard decides."""

    shard: int
    size: int
    takes: tuple[int, ...] | None = None


class Sharing:
    """How the batches of one model are filled by one worker. For one thread at a time."""

    def __init__(self, ageing_s: float = DEFAULT_AGEING_S, shares: Sequence[float] = DEFAULT_SHARES) -> None:
        self._ageing_s = ageing_s
        self._shares = tuple(shares)
        self._credits: tuple[float, ...] = (0.0,) * len(self._shares)
        # What each shard has had of a tier, per key; and how much whoever waits has had at least.
        self._had: dict[tuple[int, int], float] = {}
        self._least = [0.0] * len(self._shares)

    def plan(self, shards: Sequence[ShardView], size: int, now: float) -> tuple[Part, ...]:
        """The parts of the next batch, in the order of its requests; their sizes sum to `size` unless nothing waits."""
        self._start_turns(shards)
        waiting = [number for number, view in enumerate(shards) if any(view.depths)]
        depth = sum([shards[number].depth for number in waiting])
        if not waiting or size <= 0:
            return ()
        if depth <= size:
            return _with_room([(each, shards[each].depth) for each in self.order(shards)], size - depth)
        if len(waiting) == 1:
            return (Part(waiting[0], size),)
        takes: dict[int, list[int]] = {}
        for rank, places in enumerate(self._allocate([shards[number] for number in waiting], size, now)):
            for shard, count in self._share_out(shards, waiting, rank, places, now):
                takes.setdefault(shard, [0] * len(self._shares))[rank] += count
        parts = [Part(shard, sum(mine), tuple(mine)) for shard, mine in takes.items()]
        # A lone shard decides for itself: it has credits of its own, which all workers share.
        return tuple(parts) if len(parts) > 1 else (Part(parts[0].shard, size),)

    def order(self, shards: Sequence[ShardView]) -> list[int]:
        """The shards where something waits: the highest tier first, then whose turn it is, the oldest, the deepest."""

        def key(shard: int) -> tuple[float, ...]:
            view = shards[shard]
            return view.top, *self._turn(shards, shard, view.top)

        return sorted((number for number, view in enumerate(shards) if view.depth), key=key)

    def took(self, shard: int, rank: int, taken: int, keys: int = 1) -> None:
        """A shard gave `taken` requests of a tier, of so many different keys."""
        self._had[shard, rank] = self._had_so_far(shard, rank) + taken / max(1, keys)

    def _had_so_far(self, shard: int, rank: int) -> float:
        return max(self._had.get((shard, rank), 0.0), self._least[rank])

    def _start_turns(self, shards: Sequence[ShardView]) -> None:
        for rank, least in enumerate(self._least):
            had = [self._had.get((number, rank), 0.0) for number, view in enumerate(shards) if view.depths[rank]]
            if had:
                self._least[rank] = max(least, min(had))

    def _turn(self, shards: Sequence[ShardView], shard: int, rank: int) -> tuple[float, ...]:
        view = shards[shard]
        return self._had_so_far(shard, rank), view.oldest_at[rank], -view.depths[rank], shard

    def _allocate(self, shards: Sequence[ShardView], size: int, now: float) -> tuple[int, ...]:
        ranks = range(len(self._shares))
        aged = [any(now - view.oldest_at[rank] >= self._ageing_s for view in shards) for rank in ranks]
        depths = [sum(view.depths[rank] for view in shards) for rank in ranks]
        allocation = allocate(depths, size, self._credits, guaranteed(self._shares, aged))
        self._credits = allocation.credits
        return allocation.takes

    def _is_overdue(self, view: ShardView, rank: int, now: float) -> bool:
        # What has just come can wait for its turn. The age is not known of a plain Celery client's message.
        since = view.oldest_at[rank] if view.oldest_at[rank] < math.inf else -math.inf
        return now - max(view.asked_at, since) >= self._ageing_s

    def _share_out(
        self, shards: Sequence[ShardView], waiting: Sequence[int], rank: int, places: int, now: float
    ) -> Iterable[tuple[int, int]]:
        """The shards, by turns, with their numbers of a tier's places; only those that get any."""
        if not places:
            return ()
        mine = [number for number in waiting if shards[number].depths[rank]]
        turns = sorted(mine, key=lambda shard: self._turn(shards, shard, rank)) if len(mine) > 1 else mine
        given: dict[int, int] = {}
        overdue = [shard for shard in turns if self._is_overdue(shards[shard], rank, now)]
        for left, shard in zip(range(len(overdue), 0, -1), overdue, strict=True):
            given[shard] = min(shards[shard].depths[rank], math.ceil(places / left))
            places -= given[shard]
        for shard in turns:
            if not places:
                break
            more = min(shards[shard].depths[rank] - given.get(shard, 0), places)
            given[shard] = given.get(shard, 0) + more
            places -= more
        return [(shard, count) for shard, count in given.items() if count]


def _with_room(depths: Sequence[tuple[int, int]], room: int) -> tuple[Part, ...]:
    """A part for each shard. The room that is left is for what has come meanwhile, and nobody knows where."""
    each, more = divmod(room, len(depths))
    return tuple(Part(shard, depth + each + (n < more)) for n, (shard, depth) in enumerate(depths))


def capacity_shares(capacity: float, claimed_per_s: Sequence[float]) -> list[float]:
    """The share of a worker's `capacity` (requests per second) that each shard may count on for what it admits.

    It is what the other shards have left of it lately. A shard that had little is next (`Sharing`), so it may count on
    an even share at least. While the shards have less than all, their shares sum to more than 1.
    """
    even, total = 1 / len(claimed_per_s), sum(claimed_per_s)
    if capacity <= 0:
        return [1.0] * len(claimed_per_s)
    return [min(1.0, max(even, 1 - (total - mine) / capacity)) for mine in claimed_per_s]

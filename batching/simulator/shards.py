"""The queue of one model on several shards: each shard has lanes of its own, and one batch is claimed from several.

    arrivals ──▶ shard of their owner ──▶ Queues ┐
                                          Queues ├──Sharing.plan──▶ parts ──▶ one batch
                                          Queues ┘      ▲
                                            └─look, claim┘

The rule is `batching.policy.sharding`, asked as the worker's sharded store asks it: by what the worker knows of each
shard from its looks and claims. Outside, lanes are numbered through all shards: `shard · tiers + rank`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from batching.claim.loop_state import LOOK_EVERY_S, Waiting
from batching.policy import DEFAULT_AGEING_S, Part, Sharing
from batching.policy.sharding import ShardView
from batching.simulator.lanes import Batch, Lane, Ledger, Seen
from batching.simulator.queues import Queues

# Executors of one worker, which share what they know of the shards.
EXECUTORS_OF_A_WORKER = 8
# Each of them asks shards that have not been asked for the batch, until it is full.
_ROUNDS = 2
_NOTHING = Waiting(0, -math.inf, math.inf)


@dataclass(slots=True)
class _Known:
    """One shard as a worker saw it at `seen_at`, less what has been planned since."""

    depths: list[int]
    oldest_at: tuple[float, ...]
    due_at: float = math.inf
    seen_at: float = -math.inf
    asked_at: float = -math.inf

    def view(self) -> ShardView:
        oldest_at = (at if depth else math.inf for depth, at in zip(self.depths, self.oldest_at, strict=True))
        return ShardView(tuple(self.depths), tuple(oldest_at), self.asked_at)


class _Worker:
    """What the executors of one worker know of the shards."""

    def __init__(self, shards: Sequence[Queues], reach: int) -> None:
        self._shards = shards
        self._reach = reach
        self._sharing = Sharing()
        tiers = len(shards[0].lanes)
        self._nothing = ShardView((0,) * tiers, (math.inf,) * tiers)
        self._known = [_Known([0] * tiers, (math.inf,) * tiers) for _ in shards]

    @property
    def depth(self) -> int:
        return sum(sum(known.depths) for known in self._known)

    def unseen(self, now: float) -> list[int]:
        """The shards that were not seen for a while."""
        return [number for number, known in enumerate(self._known) if now - known.seen_at >= LOOK_EVERY_S]

    def see(self, numbers: Collection[int], now: float) -> None:
        """Look at shards."""
        for number in numbers:
            shard, known = self._shards[number], self._known[number]
            known.depths, known.due_at, known.seen_at = shard.depths(), shard.due, now
            known.oldest_at = tuple(lane.oldest() for lane in shard.lanes)

    def claimable(self) -> Waiting:
        """What one claim can take from."""
        there = [known for known in self._known if any(known.depths)]
        if len(there) > self._reach:
            views = [known.view() for known in self._known]
            there = [self._known[number] for number in self._within_reach(views, self._reach)]
        if not there:
            return _NOTHING
        return Waiting(
            sum(sum(known.depths) for known in there),
            min(at for known in there for depth, at in zip(known.depths, known.oldest_at, strict=True) if depth),
            min(known.due_at for known in there),
        )

    def plan(self, asked: Collection[int], size: int, reach: int, now: float) -> tuple[Part, ...]:
        """The parts of a batch from shards that have not been asked. What is planned counts as taken."""
        views = [self._nothing if number in asked else known.view() for number, known in enumerate(self._known)]
        if reach < len(views):
            there = set(self._within_reach(views, reach, now))
            views = [view if number in there else self._nothing for number, view in enumerate(views)]
        parts = self._sharing.plan(views, size, now)
        for part in parts:
            known, left = self._known[part.shard], part.size
            known.asked_at = now
            for rank, depth in enumerate(known.depths):
                taken = min(depth, left if part.takes is None else part.takes[rank])
                known.depths[rank] -= taken
                left -= taken
        return parts

    def took(self, number: int, part: Batch) -> None:
        for rank, first, end in part.runs:
            self._sharing.took(number, rank, end - first)
        for rank, _ in part.singles:
            self._sharing.took(number, rank, 1)

    def _within_reach(self, views: Sequence[ShardView], reach: int, now: float = -math.inf) -> list[int]:
        order = self._sharing.order(views)
        if reach >= len(order):
            return order
        # The rule counts on reaching all of them, so it does not care which of them come first when it is time.
        overdue = [number for number in order if views[number].asked_at <= now - DEFAULT_AGEING_S]
        return [*overdue, *(number for number in order if number not in overdue)][:reach]


class ShardedQueues:
    """The same as `Queues`, over the queues of all shards, which share the ledger.

    Args:
        reach: the most shards from which one batch is claimed.
    """

    def __init__(self, shards: Sequence[Queues], ledger: Ledger, *, reach: int) -> None:
        self.ledger = ledger
        self.lanes: list[Lane] = [lane for shard in shards for lane in shard.lanes]
        self._shards = list(shards)
        self._tiers = len(shards[0].lanes)
        self._reach = reach
        self._workers: defaultdict[int, _Worker] = defaultdict(lambda: _Worker(self._shards, reach))
        # The executors that have looked, and claim next.
        self._looked: set[int] = set()
        self.looks = 0
        self.seen = 0
        self.depth = 0
        self.next_arrival = math.inf
        self._note()

    @property
    def delayed(self) -> bool:
        return any(shard.delayed for shard in self._shards)

    @property
    def due(self) -> float:
        return min(shard.due for shard in self._shards)

    @property
    def view(self) -> Waiting:
        """The whole queue as it is, whether anybody knows or not."""
        waiting = [shard.oldest for shard in self._shards if shard.depth]
        return Waiting(self.depth, min(waiting, default=-math.inf), self.due)

    def arrive(self, now: float) -> None:
        if now < self.next_arrival:
            return
        for shard in self._shards:
            shard.arrive(now)
        self._note()

    def wake_delayed(self, now: float) -> None:
        if self.delayed:
            for shard in self._shards:
                shard.wake_delayed(now)
            self._note()

    def look(self, reader: int, now: float) -> Seen:
        """The executor `reader` looks at every shard."""
        self._look(self._worker(reader), range(len(self._shards)), now)
        self._looked.add(reader)
        return self.known(reader)

    def known(self, reader: int) -> Seen:
        """What the worker of the executor `reader` knows."""
        worker = self._worker(reader)
        return Seen(worker.claimable(), worker.depth)

    def claim(self, now: float, size: int, margin_s: float = 0.0, reader: int = 0) -> Batch:
        """Take up to `size` from the shards, by the worker's plan."""
        self.arrive(now)
        worker = self._worker(reader)
        if worker.depth < (1 if reader in self._looked else size):
            self._look(worker, range(len(self._shards)), now)
        else:
            # Others may have something, although what is known fills the batch.
            self._look(worker, worker.unseen(now), now)
        self._looked.discard(reader)
        batch = Batch(visits=0, parts=0)
        asked: set[int] = set()
        for _ in range(_ROUNDS):
            for part in worker.plan(asked, size - batch.size, self._reach - batch.parts, now):
                asked.add(part.shard)
                worker.took(part.shard, self._visit(part, batch, now, margin_s))
                worker.see((part.shard,), now)
            if batch.size >= size or batch.parts >= self._reach:
                break
        if batch.size:
            batch.first_at = min(self.lanes[lane].times[first] for lane, first in _heads(batch))
            batch.middle_at = self._came_at(batch, batch.size // 2)
        self._note()
        return batch

    def add(self, number: int, at: float, called: float) -> None:
        shard, rank = divmod(number, self._tiers)
        self._shards[shard].add(rank, at, called)
        self.next_arrival = min(self.next_arrival, at)

    def put_back(self, batch: Batch, *, lost: int, attempt: int) -> None:
        for shard, part in self._parts(batch):
            self._shards[shard].put_back(part, lost=lost, attempt=attempt)
        self._note()

    def retry(self, now: float, batch: Batch, jitters: Sequence[float]) -> list[tuple[int, int]]:
        given_up: list[tuple[int, int]] = []
        for shard, part in self._parts(batch):
            own, jitters = jitters[: part.size], jitters[part.size :]
            base = shard * self._tiers
            given_up += [(base + rank, index) for rank, index in self._shards[shard].retry(now, part, own)]
        return given_up

    def _worker(self, reader: int) -> _Worker:
        return self._workers[reader // EXECUTORS_OF_A_WORKER]

    def _look(self, worker: _Worker, numbers: Collection[int], now: float) -> None:
        worker.see(numbers, now)
        self.looks += len(numbers)

    def _visit(self, asked: Part, batch: Batch, now: float, margin_s: float) -> Batch:
        part = self._shards[asked.shard].claim(now, asked.size, margin_s, takes=asked.takes)
        base = asked.shard * self._tiers
        batch.visits += 1
        batch.parts += part.size > 0
        batch.size += part.size
        batch.runs += [(base + rank, first, end) for rank, first, end in part.runs]
        batch.singles += [(base + rank, index) for rank, index in part.singles]
        batch.settled += [(base + rank, index) for rank, index in part.settled]
        return part

    def _came_at(self, batch: Batch, place: int) -> float:
        for lane, first, end in batch.runs:
            if place < end - first:
                return self.lanes[lane].times[first + place]
            place -= end - first
        lane, index = batch.singles[place]
        return self.lanes[lane].times[index]

    def _parts(self, batch: Batch) -> list[tuple[int, Batch]]:
        """The batch as the shards know it."""
        parts: defaultdict[int, Batch] = defaultdict(Batch)
        for lane, first, end in batch.runs:
            part = parts[lane // self._tiers]
            part.runs.append((lane % self._tiers, first, end))
            part.size += end - first
        for lane, index in batch.singles:
            part = parts[lane // self._tiers]
            part.singles.append((lane % self._tiers, index))
            part.size += 1
        return list(parts.items())

    def _note(self) -> None:
        self.seen = sum(shard.seen for shard in self._shards)
        self.depth = sum(shard.depth for shard in self._shards)
        self.next_arrival = min(shard.next_arrival for shard in self._shards)


def _heads(batch: Batch) -> list[tuple[int, int]]:
    return [(lane, first) for lane, first, _ in batch.runs] + batch.singles

"""The queues of one model, one lane per tier, and the claim as `lua/claim.lua` makes it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush

from batching.claim.loop_state import Waiting
from batching.policy import DEFAULT_SHARES, Allocation, RetryPolicy, allocate, suspect_sizes
from batching.policy.tiers import DEFAULT_AGEING_S, guaranteed
from batching.simulator.lanes import Batch, Lane, Ledger, Seen
from batching.simulator.scenario import Gate

_FIRST_TRY = (1, 0)


class Queues:
    """All lanes of one model."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        *,
        max_batch_size: int,
        max_attempts: int,
        gate: Gate | None = None,
        incoming: Sequence[tuple[float, int, float, float]] = (),
        ledger: Ledger | None = None,
    ) -> None:
        """With a `gate`, lanes start empty and `incoming` holds every arrival: time, rank, deadline, when called.

        Queues of several shards share one `ledger`.
        """
        self.lanes = list(lanes)
        self.ledger = ledger or Ledger()
        self.history: dict[tuple[int, int], tuple[int, int]] = {}
        self.delayed: list[tuple[float, int, int]] = []
        self._credits: tuple[float, ...] = (0.0,) * len(self.lanes)
        self._suspects = suspect_sizes(max_batch_size, max_attempts)
        self._retry = RetryPolicy(max_attempts)
        self._gate = gate
        self._incoming = incoming
        self._let_in = 0
        self._margin_s = 0.0
        self.looks = 0
        # At this time: the number of arrivals, the number of waiting requests and since when (minus infinity: none),
        # and the next arrival (infinite: none).
        self.seen = 0
        self.depth = 0
        self.oldest = -math.inf
        self.due = math.inf
        self.next_arrival = math.inf
        self._note()

    def arrive(self, now: float) -> None:
        """Count the requests that have arrived since. It is called at every step, so it is cheap when there are
        none.
        """
        if now < self.next_arrival:
            return
        if self._gate is not None:
            self._let_in_until(now, self._gate)
        for lane in self.lanes:
            lane.arrive(now)
        self._note()

    def depths(self) -> list[int]:
        return [lane.seen - lane.head + len(lane.front) for lane in self.lanes]

    def add(self, rank: int, at: float, called: float) -> None:
        """Add a later request of a caller, for closed loops."""
        lane = self.lanes[rank]
        place = bisect_right(lane.times, at, lo=lane.seen)
        lane.times.insert(place, at)
        if lane.called is not None:
            lane.called.insert(place, called)
        self.next_arrival = min(self.next_arrival, at)

    @property
    def view(self) -> Waiting:
        return Waiting(self.depth, self.oldest, self.due)

    def look(self, reader: int, _now: float) -> Seen:
        """A look, after `arrive`."""
        self.looks += 1
        return self.known(reader)

    def known(self, _reader: int) -> Seen:
        """What a claim tells: as much as a look."""
        return Seen(self.view, self.depth)

    def claim(
        self,
        now: float,
        size: int,
        margin_s: float = 0.0,
        _reader: int = 0,
        takes: Sequence[int] | None = None,
    ) -> Batch:
        """Take up to `size`, shared between the tiers. Late requests come out as well, and do not count.

        A request whose deadline is nearer than `margin_s` is late, too. `takes` of each tier are a plan over several
        shards.
        """
        self._margin_s = margin_s
        self.arrive(now)
        self.wake_delayed(now)
        troubled = any(lane.front for lane in self.lanes)
        batch = self._claim_troubled(now, size) if troubled else self._claim(now, size, takes)
        if batch.size:
            batch.first_at = self._came_at(batch, 0)
            batch.middle_at = self._came_at(batch, batch.size // 2)
        self._note()
        return batch

    def _came_at(self, batch: Batch, place: int) -> float:
        for rank, first, end in batch.runs:
            if place < end - first:
                return self.lanes[rank].times[first + place]
            place -= end - first
        rank, index = batch.singles[place]
        return self.lanes[rank].times[index]

    def _claim(self, now: float, size: int, planned: Sequence[int] | None) -> Batch:
        depths = [lane.seen - lane.head for lane in self.lanes]
        waiting = sum(depths)
        takes: Sequence[int] = depths
        if planned is not None:
            takes = planned
        elif waiting > size:
            allocation = self._allocate(now, depths, size)
            takes, self._credits = allocation.takes, allocation.credits
        batch = Batch()
        late = 0
        for rank, take in enumerate(takes):
            if take:
                late += self._take(rank, take, now, batch)
        if late:
            for rank in range(len(self.lanes)):
                if batch.size < size:
                    self._take(rank, size - batch.size, now, batch)
        return batch

    def _allocate(self, now: float, depths: Sequence[int], size: int) -> Allocation:
        aged = [lane.oldest() <= now - DEFAULT_AGEING_S for lane in self.lanes]
        shares = guaranteed(DEFAULT_SHARES, aged) if any(aged) else DEFAULT_SHARES
        return allocate(depths, size, self._credits, shares)

    def put_back(self, batch: Batch, *, lost: int, attempt: int) -> None:
        """A batch returns to the head of its lanes, in order, with its losses and attempts counted."""
        for rank, index in reversed(batch.requests()):
            tries, losses = self.history.get((rank, index), _FIRST_TRY)
            if attempt or lost:
                self.history[rank, index] = (tries + attempt, losses + lost)
            self.lanes[rank].front.appendleft(index)
        self._note()

    def retry(self, now: float, batch: Batch, jitters: Sequence[float]) -> list[tuple[int, int]]:
        """Put requests aside for their pauses after a transient error; returns those that are given up instead."""
        given_up = []
        for (rank, index), jitter in zip(batch.requests(), jitters, strict=True):
            attempt, lost = self.history.get((rank, index), _FIRST_TRY)
            lane = self.lanes[rank]
            pause_s = self._retry.pause(attempt, lane.deadline(index) - now, jitter)
            if pause_s is None:
                given_up.append((rank, index))
                self.ledger.failed[rank] += 1
                continue
            self.history[rank, index] = (attempt + 1, lost)
            heappush(self.delayed, (now + pause_s, rank, index))
        return given_up

    def wake_delayed(self, now: float) -> None:
        """Return requests whose pause is over to the head."""
        if not self.delayed or self.delayed[0][0] > now:
            return
        while self.delayed and self.delayed[0][0] <= now:
            _, rank, index = heappop(self.delayed)
            self.lanes[rank].front.appendleft(index)
        self._note()

    def _note(self) -> None:
        seen = depth = 0
        oldest = soonest = due = math.inf
        for lane in self.lanes:
            times, head, come = lane.times, lane.head, lane.seen
            seen += come
            depth += come - head
            if head < come:
                oldest = min(oldest, times[head])
                due = min(due, lane.deadline(head))
            if come < len(times) and times[come] < soonest:
                soonest = times[come]
            if lane.front:
                depth += len(lane.front)
                oldest = min(oldest, times[lane.front[0]])
                due = min(due, lane.deadline(lane.front[0]))
        self.seen, self.depth = seen, depth
        self.oldest = oldest if depth else -math.inf
        self.due = due
        if self._gate is not None:
            soonest = self._incoming[self._let_in][0] if self._let_in < len(self._incoming) else math.inf
        self.next_arrival = soonest

    def _let_in_until(self, now: float, gate: Gate) -> None:
        incoming = self._incoming
        while self._let_in < len(incoming) and incoming[self._let_in][0] <= now:
            at, rank, deadline, called = incoming[self._let_in]
            self._let_in += 1
            reason = gate.refuses(at, rank, self.depths())
            if reason is not None:
                self.ledger.refused[rank] += 1
                self.ledger.reasons[reason] += 1
                continue
            lane = self.lanes[rank]
            lane.times.append(at)
            if lane.deadlines is not None:
                lane.deadlines.append(deadline)
            if lane.called is not None:
                lane.called.append(called)
            lane.seen += 1

    def _take(self, rank: int, want: int, now: float, batch: Batch) -> int:
        """Take the next `want` requests of a lane that are not late; returns how many there were."""
        lane = self.lanes[rank]
        if lane.deadlines is not None:
            return self._take_singly(rank, want, now, batch)
        first = lane.head
        if first == lane.seen:
            return 0
        # All have the same limit, so the late ones are the oldest.
        cut = max(now - lane.limit_s, now + self._margin_s - lane.deadline_s)
        if lane.times[first] <= cut:
            lane.head = bisect_right(lane.times, cut, first, lane.seen)
            self.ledger.expired[rank] += lane.head - first
            batch.settled += [(rank, index) for index in range(first, lane.head)]
        late = lane.head - first
        end = min(lane.head + want, lane.seen)
        if end > lane.head:
            batch.runs.append((rank, lane.head, end))
            batch.size += end - lane.head
            lane.head = end
        return late

    def _take_singly(self, rank: int, want: int, now: float, batch: Batch) -> int:
        lane = self.lanes[rank]
        late = 0
        first = lane.head
        while want > 0 and lane.head < lane.seen:
            if lane.is_late(lane.head, now, self._margin_s):
                if lane.head > first:
                    batch.runs.append((rank, first, lane.head))
                batch.settled.append((rank, lane.head))
                first = lane.head + 1
                late += 1
            else:
                want -= 1
                batch.size += 1
            lane.head += 1
        if lane.head > first:
            batch.runs.append((rank, first, lane.head))
        self.ledger.expired[rank] += late
        return late

    def _suspect_limit(self, rank: int, index: int) -> int:
        """The size of a batch that this request may be in as a suspect; 0: it is not a suspect."""
        lost = self.history.get((rank, index), _FIRST_TRY)[1]
        return self._suspects[min(lost, len(self._suspects)) - 1] if lost else 0

    def _claim_troubled(self, now: float, size: int) -> Batch:
        """`claim` one by one, when requests have come back. Suspects run separately, in ever smaller batches."""
        only = -1
        for rank, lane in enumerate(self.lanes):
            limit = self._suspect_limit(rank, lane.front[0]) if lane.front else 0
            if limit:
                only, size = rank, min(size, limit)
                break
        depths = [depth if only in {-1, rank} else 0 for rank, depth in enumerate(self.depths())]
        takes: Sequence[int] = depths
        if sum(depths) > size:
            allocation = self._allocate(now, depths, size)
            takes, self._credits = allocation.takes, allocation.credits
        batch = Batch()
        for rank, take in enumerate(takes):
            lane, left = self.lanes[rank], take
            while left > 0 and (lane.front or lane.head < lane.seen):
                index = lane.front[0] if lane.front else lane.head
                limit = self._suspect_limit(rank, index)
                if bool(limit) != (only >= 0) or (limit and batch.size >= limit):
                    return batch
                if lane.front:
                    lane.front.popleft()
                else:
                    lane.head += 1
                if self._settle_early(rank, index, now):
                    batch.settled.append((rank, index))
                    continue
                batch.singles.append((rank, index))
                batch.size += 1
                left -= 1
        return batch

    def _settle_early(self, rank: int, index: int, now: float) -> bool:
        """Settle a request that needs no model any more. For one that has been in a batch only the deadline counts, not
        the queue limit.
        """
        attempt, lost = self.history.get((rank, index), _FIRST_TRY)
        lane = self.lanes[rank]
        if lane.deadline(index) <= now + self._margin_s or (attempt == 1 and lane.is_late(index, now)):
            self.ledger.expired[rank] += 1
            return True
        if self._retry.exhausted(attempt, lost):
            self.ledger.failed[rank] += 1
            return True
        return False

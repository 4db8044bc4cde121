"""The events of a simulation, in the order in which the threads of the real loop would see them.

    turn ── Look ──look_s──▶ looked ──┐
      │                               ▼
      ├── Dispatch ──claim_s──▶ claimed ──▶ executor ──seconds(n)──▶ done ──reply_s──▶ answered
      │                           │                                   │
      │                           └─▶ turn, with the claim's view     └─▶ turn, if it waited for the executor
      └── Wait ──▶ an alarm; the executor; or the bell, if nothing is in hand

An event is a tuple on one heap: time, serial number, function, feeder, epoch, argument. Arrivals are not events: a
working feeder finds them when it looks, and only a feeder that waits at the bell is woken by the next one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from batching.batch_sizes import padded
from batching.claim.loop_state import Pause, Until, Waiting
from batching.policy import Decision, Dispatch, Look, Wait
from batching.simulator.arrivals import Callers
from batching.simulator.feeder import At, Feeder
from batching.simulator.inputs import Draws, make_queues
from batching.simulator.lanes import Batch
from batching.simulator.report import Report, Served, report
from batching.simulator.scenario import Scenario


class Stuck(Exception):
    """A policy asks for a look right after a look: the real loop would spin."""


def simulate(scenario: Scenario, seed: int = 1) -> Report:
    """Run a scenario. The same scenario and seed give the same report.

    Raises:
        Stuck: the policy would make the real loop spin.
    """
    return Simulation(scenario, seed).run()


class Simulation:
    """One run. `call_at`, `add` and `drain` are for callers that change the fleet while it runs; `next_at` and `step`,
    `hold` and `release` for those that run several models at once.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.now = 0.0
        self.feeders: list[Feeder] = []
        self._scenario = scenario
        self._draws = Draws(scenario, seed)
        self.queues = make_queues(scenario, self._draws)
        self._costs = scenario.overheads
        self._faults = None if scenario.faults.none else scenario.faults
        self._heap: list[tuple[float, int, Callable[..., None], Feeder, int, Any]] = []
        self._serial = 0
        self._at_bell: deque[tuple[Feeder, int]] = deque()
        # The number of arrivals whose ring has been heard: a feeder that comes later finds the token.
        self._heard = 0
        self._seconds: dict[int, float] = {}
        self._served = Served()
        self._end = scenario.duration_s + scenario.drain_s
        self._callers = scenario.arrivals if isinstance(scenario.arrivals, Callers) else None
        for _ in range(scenario.executors):
            self.add(ready_at=0.0)

    def run(self) -> Report:
        while self.step():
            pass
        return self.report()

    @property
    def next_at(self) -> float:
        """The time of the next event; infinite: there is none."""
        arrival = self.queues.next_arrival if self._at_bell else math.inf
        return min(self._heap[0][0], arrival) if self._heap else arrival

    def step(self) -> bool:
        """Do the next event; returns whether there was one before the end."""
        heap = self._heap
        arrival = self.queues.next_arrival if self._at_bell else math.inf
        if heap and heap[0][0] < arrival:
            self.now, _, event, feeder, epoch, argument = heappop(heap)
            if self.now > self._end:
                return False
            event(feeder, epoch, argument)
        elif arrival < math.inf:
            self.now = arrival
            self._ring()
        else:
            return False
        return True

    def report(self) -> Report:
        """The report of the run so far."""
        return report(self._scenario, self.queues, self.feeders, self._served, self.now)

    def add(self, ready_at: float) -> None:
        """Add an executor, which takes batches from `ready_at` on."""
        sizes = self._scenario.batch_sizes
        feeder = Feeder(len(self.feeders), self._scenario.policy(), ready_at, self.feeders, sizes)
        feeder.shapes.update(sizes)
        self.feeders.append(feeder)
        self._push(ready_at, self._up, feeder)

    def drain(self, feeder: Feeder) -> None:
        """The feeder claims no more, and is removed when nothing is in hand."""
        feeder.draining = True
        if feeder.at is not At.WORK and not feeder.state.in_hand:
            feeder.epoch += 1
            self._gone(feeder)

    def hold(self, feeder: Feeder) -> None:
        """The feeder claims no more; its executor is down (`At.DOWN`) when nothing is in hand."""
        feeder.held = True
        if feeder.at is not At.WORK and not feeder.state.in_hand:
            feeder.epoch += 1
            feeder.at = At.DOWN

    def release(self, feeder: Feeder, now: float) -> None:
        """The executor of a held feeder takes batches again."""
        feeder.held = False
        if feeder.at is At.DOWN:
            self.now = now
            self._push(now, self._up, feeder)

    def call_at(self, at: float, function: Callable[[], None]) -> None:
        self._push(at, lambda _feeder, _epoch, call: call(), self.feeders[0], function)

    def _push(self, at: float, event: Callable[..., None], feeder: Feeder, argument: Any = None) -> None:
        self._serial += 1
        heappush(self._heap, (at, self._serial, event, feeder, feeder.epoch, argument))

    def _turn(self, feeder: Feeder, view: Waiting | None) -> None:
        """One decision, as `ClaimLoop._turn`."""
        feeder.at = At.WORK
        if feeder.draining or feeder.held:
            if feeder.state.in_hand:
                feeder.at = At.EXECUTOR
            elif feeder.draining:
                self._gone(feeder)
            else:
                feeder.epoch += 1
                feeder.at = At.DOWN
            return
        permitted = feeder.breaker.permits(self.now)
        if not permitted:
            self._pause(feeder, feeder.state.refused(self.now))
            return
        decision = feeder.decide(view, self.now)
        if isinstance(decision, Look):
            if self._costs.look_s:
                self._push(self.now + self._costs.look_s, self._looked, feeder, permitted)
            else:
                self._looked(feeder, feeder.epoch, permitted)
        else:
            self._act(feeder, decision, permitted)

    def _looked(self, feeder: Feeder, epoch: int, permitted: int) -> None:
        if epoch != feeder.epoch:
            # The executor has died meanwhile.
            return
        self.queues.arrive(self.now)
        self.queues.wake_delayed(self.now)
        seen = self.queues.look(feeder.number, self.now)
        feeder.state.looked(seen.depth, self.now)
        decision = feeder.decide(seen.claimable, self.now)
        if isinstance(decision, Look):
            raise Stuck(f"{feeder.state.learner.policy!r} asked to look again right after a look")
        self._act(feeder, decision, permitted)

    def _act(self, feeder: Feeder, decision: Decision, permitted: int) -> None:
        if isinstance(decision, Dispatch):
            feeder.breaker.take(self.now)
            feeder.state.asks(self.now)
            claim = feeder.state.limited(decision, permitted)
            self._push(self.now + self._costs.claim_s, self._claimed, feeder, claim)
        elif isinstance(decision, Wait):
            self._pause(feeder, feeder.state.pause(decision, self.now))

    def _pause(self, feeder: Feeder, pause: Pause) -> None:
        feeder.epoch += 1
        feeder.at = At(pause.ends)
        if pause.ends is Until.BELL:
            queues = self.queues
            queues.arrive(self.now)
            if queues.seen > self._heard:
                self._heard = queues.seen
                feeder.at, pause = At.MOMENT, Pause(Until.MOMENT, self.now)
            else:
                self._at_bell.append((feeder, feeder.epoch))
                if not (queues.depth or queues.delayed):
                    # Without a deadline, only an arrival changes anything.
                    return
        self._push(pause.at, self._alarm, feeder)

    def _alarm(self, feeder: Feeder, epoch: int, _argument: Any) -> None:
        if epoch == feeder.epoch:
            feeder.epoch += 1
            self._turn(feeder, None)

    def _ring(self) -> None:
        """Wake the feeder that has waited longest at the bell, if any."""
        while self._at_bell:
            feeder, epoch = self._at_bell.popleft()
            if epoch == feeder.epoch:
                self.queues.arrive(self.now)
                self._heard = self.queues.seen
                feeder.epoch += 1
                self._turn(feeder, None)
                return

    def _claimed(self, feeder: Feeder, epoch: int, decision: Dispatch) -> None:
        if epoch != feeder.epoch:
            return
        batch = self.queues.claim(self.now, decision.size, decision.margin_s, feeder.number)
        self._served.visits += batch.visits
        if batch.settled:
            self._come_back(batch.settled, self.now)
        left = self.queues.known(feeder.number)
        if batch.size:
            self._served.parts += batch.parts
            state, now, costs = feeder.state, self.now, self._costs
            state.claimed(batch, batch.size, left.depth, now - batch.first_at, now - batch.middle_at, now)
            if len(state.in_hand) == 1:
                arrives_s = costs.claim_item_s * batch.size + costs.visit_s * (batch.visits - 1)
                self._compute(feeder, batch, self.now + arrives_s)
        else:
            feeder.breaker.found_nothing()
            feeder.state.found_nothing(left.depth, self.now)
        self._turn(feeder, left.claimable)

    def _compute(self, feeder: Feeder, batch: Batch, at: float) -> None:
        scenario = self._scenario
        size = padded(batch.size, scenario.batch_sizes)
        seconds = self._seconds.get(size)
        if seconds is None:
            seconds = self._seconds[size] = scenario.service.seconds(size)
        if scenario.new_size_s and size not in feeder.shapes:
            feeder.shapes.add(size)
            seconds += scenario.new_size_s
        if self._draws.jitter:
            seconds *= self._draws.spread()
        lost = False
        if self._faults is not None:
            seconds, lost = self._draws.trouble(seconds)
        feeder.busy_s += seconds
        self._served.batches.append((at, batch.size))
        self._push(at + seconds + self._costs.collect_s, self._lost if lost else self._done, feeder)

    def _done(self, feeder: Feeder, _epoch: int, _argument: Any) -> None:
        batch, *behind = feeder.state.in_hand
        if behind:
            # It started when the batch in front of it ended.
            self._compute(feeder, behind[0], self.now - self._costs.collect_s)
        failed = self._faults is not None and self._draws.fails(self.now)
        feeder.state.finished(batch, batch.size, self.now, ok=not failed)
        feeder.batches += 1
        feeder.breaker.record(self.now, ok=not failed)
        if failed:
            given_up = self.queues.retry(self.now, batch, self._draws.jitters(batch.size))
            self._come_back(given_up, self.now)
        else:
            self._answer(feeder, batch)
        if feeder.at is At.EXECUTOR:
            feeder.epoch += 1
            self._turn(feeder, None)

    def _answer(self, feeder: Feeder, batch: Batch) -> None:
        feeder.served += batch.size
        finish_item_s, item_s = self._draws.way_back()
        at = begun = self.now + self._costs.reply_s + finish_item_s * batch.size
        answered = self.queues.ledger.answered
        for rank, first, end in batch.runs:
            answered[rank].append((first, end, at, item_s))
            at += item_s * (end - first)
        for rank, index in batch.singles:
            answered[rank].append((index, index + 1, at, item_s))
            at += item_s
        self._come_back(batch.requests(), begun + item_s, item_s)

    def _come_back(self, requests: list[tuple[int, int]], at: float, item_s: float = 0.0) -> None:
        """The callers of a closed loop send their next requests one after the other: the process that answers them also
        takes their requests.
        """
        if self._callers is None:
            return
        costs = self._costs
        called = at + self._callers.think_s
        again = called + costs.submit_s + costs.submit_item_s
        for rank, _ in requests:
            if again < self._scenario.duration_s:
                self.queues.add(rank, again, called)
            called += item_s
            again += item_s + costs.submit_item_s

    def _lost(self, feeder: Feeder, _epoch: int, _argument: Any) -> None:
        """The executor died with a batch inside."""
        assert self._faults is not None
        feeder.breaker.record(self.now, ok=False)
        inside, *behind = feeder.state.in_hand
        for batch in (inside, *behind):
            feeder.state.lost(batch, self.now)
        for batch in behind:
            self.queues.put_back(batch, lost=0, attempt=0)
        self.queues.put_back(inside, lost=1, attempt=1)
        feeder.epoch += 1
        feeder.at = At.DOWN
        self._push(self.now + self._faults.restart_s, self._up, feeder)
        self._ring()

    def _up(self, feeder: Feeder, epoch: int, _argument: Any) -> None:
        if epoch == feeder.epoch:
            feeder.epoch += 1
            self._turn(feeder, None)

    def _gone(self, feeder: Feeder) -> None:
        feeder.at = At.GONE
        self._served.gone[feeder.number] = self.now

"""One executor, and what its claim loop knows: the mirror of `batching.claim.loop.ClaimLoop`'s state."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from enum import Enum

from batching.policy import Breaker, Decision, Learner, Policy, QueueView
from batching.simulator.queues import Batch, Waiting


class At(Enum):
    """Where a feeder's thread is."""

    WORK = "work"  # looking, claiming, or about to decide
    EXECUTOR = "executor"  # waits for the executor to come free
    BELL = "bell"  # waits for an arrival
    SLEEP = "sleep"  # waits for a moment, whatever comes
    DOWN = "down"  # its executor is not ready
    GONE = "gone"  # drained


class Feeder:
    """The loop of one executor."""

    __slots__ = (
        *("at", "batch_s", "batches", "breaker", "busy_s", "draining", "epoch", "front_since", "in_hand", "learner"),
        *("number", "peers", "served", "sizes", "started_at"),
    )

    def __init__(self, number: int, policy: Policy, peers: Sequence[Feeder] = ()) -> None:
        """`peers` are all loops of its worker, itself among them; in the simulator there is one worker."""
        self.number = number
        self.peers = peers
        self.learner = Learner(policy)
        self.breaker = Breaker()
        self.at = At.WORK
        # Counts the waits, so that an alarm of one that is over is known as such.
        self.epoch = 0
        self.in_hand: deque[Batch] = deque()
        self.front_since = 0.0
        self.batch_s = 0.0
        self.sizes = (0, 0)
        self.started_at = 0.0
        self.busy_s = 0.0
        self.batches = 0
        self.served = 0
        self.draining = False

    @property
    def is_idle(self) -> bool:
        return not self.in_hand and self.at not in {At.DOWN, At.GONE}

    @property
    def policy(self) -> Policy:
        return self.learner.policy

    def decide(self, view: Waiting | None, now: float) -> Decision:
        return self.learner.policy.decide(self.view(view, now), now)

    def view(self, view: Waiting | None, now: float) -> QueueView:
        """What the policy is shown; None when nobody has looked."""
        return QueueView(
            depth=None if view is None else view.depth,
            oldest_at=now if view is None else view.oldest_at,
            due_at=math.inf if view is None else view.due_at,
            in_hand=len(self.in_hand),
            free_at=self.front_since + (self.batch_s if self.in_hand else 0.0),
            batch_s=self.batch_s,
            recent=max(self.sizes),
            idle=sum(each.is_idle for each in self.peers if each is not self) if len(self.peers) > 1 else 0,
            learnt=self.learner.learnt,
        )

    def took(self, now: float, batch: Batch, left: int) -> None:
        """A claimed batch is handed over; `left` requests still wait."""
        self.learner.claimed(batch.size, left, now - batch.first_at, now - batch.middle_at, now)
        if not self.in_hand:
            self.front_since = now
        self.in_hand.append(batch)
        self.sizes = (self.sizes[1], batch.size)

    def done(self, now: float, *, computed: bool) -> tuple[Batch, float]:
        """The batch inside is out of hand, after so many seconds there."""
        batch = self.in_hand.popleft()
        took_s = now - self.front_since
        if computed:
            self.batch_s = took_s if not self.batch_s else self.batch_s + (took_s - self.batch_s) / 8
        self.front_since = now
        return batch, took_s

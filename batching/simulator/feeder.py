"""One executor, and what its claim loop knows: the mirror of `batching.loop.ClaimLoop`'s state."""

from __future__ import annotations

from collections import deque
from enum import Enum

from batching.policy import Breaker, Decision, Policy, QueueView
from batching.simulator.queues import Batch


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
        *("at", "batch_s", "batches", "breaker", "busy_s", "draining", "epoch", "front_since", "in_hand", "number"),
        *("policy", "served", "sizes", "started_at"),
    )

    def __init__(self, number: int, policy: Policy) -> None:
        self.number = number
        self.policy = policy
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

    def decide(self, view: tuple[int, float] | None, now: float) -> Decision:
        return self.policy.decide(self.view(view, now), now)

    def view(self, view: tuple[int, float] | None, now: float) -> QueueView:
        """What the policy is shown; `view` is depth and oldest arrival, None when nobody has looked."""
        return QueueView(
            depth=None if view is None else view[0],
            oldest_at=now if view is None else view[1],
            in_hand=len(self.in_hand),
            free_at=self.front_since + (self.batch_s if self.in_hand else 0.0),
            batch_s=self.batch_s,
            recent=max(self.sizes),
        )

    def took(self, now: float, batch: Batch) -> None:
        """A claimed batch is handed over."""
        if not self.in_hand:
            self.front_since = now
        self.in_hand.append(batch)
        self.sizes = (self.sizes[1], batch.size)

    def done(self, now: float, *, computed: bool) -> Batch:
        """The batch inside is out of hand."""
        batch = self.in_hand.popleft()
        if computed:
            took_s = now - self.front_since
            self.batch_s = took_s if not self.batch_s else self.batch_s + (took_s - self.batch_s) / 8
        self.front_since = now
        return batch

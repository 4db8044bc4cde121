"""One executor of the simulator, with the same state that its claim loop has in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from batching.claim.loop_state import LoopState, Until, Waiting
from batching.policy import Breaker, Decision, Policy
from batching.simulator.lanes import Batch


class At(Enum):
    """The place of a feeder's thread."""

    WORK = "work"  # looking, claiming, or about to decide
    EXECUTOR = Until.EXECUTOR
    BELL = Until.BELL
    MOMENT = Until.MOMENT
    DOWN = "down"  # its executor is not ready
    GONE = "gone"  # drained


class Feeder:
    """The loop of one executor, which takes batches from `started_at` on."""

    __slots__ = (
        *("at", "batches", "breaker", "busy_s", "draining", "epoch", "held", "number", "peers", "served", "shapes"),
        *("started_at", "state"),
    )

    def __init__(
        self,
        number: int,
        policy: Policy,
        started_at: float = 0.0,
        peers: Sequence[Feeder] = (),
        sizes: tuple[int, ...] = (),
    ) -> None:
        """`peers` are all loops of its worker, including itself; in the simulator there is one worker."""
        self.number = number
        self.peers = peers
        self.state: LoopState[Batch] = LoopState(policy, started_at, sizes)
        self.breaker = Breaker()
        self.at = At.DOWN
        # Counts the waits, so that an alarm of an earlier wait is recognised.
        self.epoch = 0
        self.started_at = started_at
        self.busy_s = 0.0
        self.batches = 0
        self.served = 0
        # The sizes that its model has run so far.
        self.shapes: set[int] = set()
        self.draining = self.held = False

    @property
    def is_idle(self) -> bool:
        return not self.state.in_hand and self.at not in {At.DOWN, At.GONE}

    def decide(self, view: Waiting | None, now: float) -> Decision:
        """The policy's decision. `view` is None without a look."""
        peers = self.peers
        idle = sum(each.is_idle for each in peers if each is not self) if len(peers) > 1 else 0
        return self.state.decide(view, now, idle)

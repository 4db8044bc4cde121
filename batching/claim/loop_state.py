"""The state of a claim loop and the decisions that follow from it: the same object in the worker and in the simulator.

    asks ──▶ claimed ──▶ in hand ──▶ finished ──┐
      │                     └──────▶ lost ──────┤
      └────▶ found_nothing ─────────────────────┼──▶ decide, by the policy ──▶ Dispatch ──limited──▶ the claim
    looked ─────────────────────────────────────┘                          └─▶ Wait ──────pause────▶ Pause

It only calculates: no clock, no lock, no Redis. Moments are seconds on any one clock. The worker's loop puts batches in
and takes them out under its own condition (`batching.claim.in_hand`); the simulator does so in virtual time.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from batching.policy import (
    BatchTime,
    Decision,
    Dispatch,
    Learner,
    Look,
    Policy,
    QueueView,
    StepTime,
    Throughput,
    Wait,
    rounded,
)

# Every producer's flush rings, and each ring costs a look; so a wait this short ignores the bell.
TOO_SHORT_FOR_BELLS_S = 0.003
TICK_S = 0.25
# A plain Celery client does not ring; its messages are found at this interval (the contract allows 100 ms).
LOOK_EVERY_S = 0.08
# After memory ran out, larger batches are tried again: a neighbour on the GPU may have left, or the inputs were
# unusual. Each try that fails costs some calls, so the time until the next doubles.
FIRST_TRY_S = 60.0
_LAST_TRY_S = 3600.0
# An average over about eight batches: accurate enough to time the next claim.
_GAIN = 1 / 8

B = TypeVar("B")


class Waiting(NamedTuple):
    """The result of a look: the number of waiting requests, since when the oldest waits (minus infinity: none), and the
    earliest deadline of the heads.
    """

    depth: int
    oldest_at: float
    due_at: float


class Until(Enum):
    """Events that end a pause early."""

    EXECUTOR = "executor"  # it comes free
    BELL = "bell"  # a request arrives
    MOMENT = "moment"  # nothing does


class Pause(NamedTuple):
    """A pause until `ends` happens, and until `at` at the latest."""

    ends: Until
    at: float


class LoopState(Generic[B]):
    """The state of one executor's loop. A `B` is a batch as the loop keeps it.

    Args:
        free_since: the time from which the executor was ready for its first batch.
        sizes: the only sizes with which the model is run, ascending; none: any.
    """

    __slots__ = (
        *("_fits", "_front_since", "_more_waits", "_recent", "_row_since", "_sizes", "_try_at", "_try_s", "_whole"),
        *("batch_s", "in_hand", "learner", "pace", "pressed_size", "read_s", "safe_size"),
    )

    def __init__(self, policy: Policy, free_since: float = 0.0, sizes: tuple[int, ...] = ()) -> None:
        self._sizes = sizes
        # The policy is a value: a new one applies from the next decision on, and keeps all that was learned.
        self.learner = Learner(policy, _time_of(sizes))
        # In the order of computation: the first one is inside the model.
        self.in_hand: deque[B] = deque()
        self.batch_s = 0.0
        # The time from a claim until its large payloads are here.
        self.read_s = 0.0
        # The time from the end of one batch to the end of the next in a run; it includes the claim.
        self.pace = Throughput()
        # The largest batch that fitted into the device's memory, or is to be tried; None: no limit is known.
        self.safe_size: int | None = None
        # The largest batch that had no room, and the size that had; when larger ones are tried, and how long after the
        # next failure.
        self._whole = self._fits = 0
        self._try_at = -math.inf
        self._try_s = FIRST_TRY_S
        # The limit while its device's memory is nearly full; None: it is not.
        self.pressed_size: int | None = None
        self._front_since = free_since
        self._row_since = free_since
        self._more_waits = False
        # The sizes of the last two batches.
        self._recent = (0, 0)

    @property
    def was_alone(self) -> bool:
        """True if the last batches were of one request and nothing waited behind them."""
        return max(self._recent) == 1 and not self._more_waits

    @property
    def more_waits(self) -> bool:
        """True if the last claim left requests behind."""
        return self._more_waits

    def use(self, policy: Policy, sizes: tuple[int, ...]) -> None:
        """Use another policy; with other sizes, the time of a batch is learned anew."""
        self.learner.policy = policy
        if sizes != self._sizes:
            self._sizes = sizes
            self.learner.start_anew(_time_of(sizes))

    def decide(self, queue: Waiting | None, now: float, idle: int = 0) -> Decision:
        """The policy's decision. `queue` is None without a look; `idle` is the number of other idle executors."""
        learner, in_hand = self.learner, len(self.in_hand)
        view = QueueView(
            depth=None if queue is None else queue.depth,
            oldest_at=now if queue is None else queue.oldest_at,
            due_at=math.inf if queue is None else queue.due_at,
            in_hand=in_hand,
            free_at=self._front_since + self.batch_s if in_hand else self._front_since,
            batch_s=self.batch_s,
            recent=max(self._recent),
            idle=idle,
            learnt=learner.learnt,
            read_s=self.read_s,
        )
        decision = learner.policy.decide(view, now)
        if self._sizes and isinstance(decision, Dispatch):
            return rounded(decision, view, now, self._sizes)
        # Of a model with sizes the one for the batch is known only after the look.
        return Look() if self._sizes and isinstance(decision, Look) else decision

    def limited(self, decision: Dispatch, permitted: int) -> Dispatch:
        """The claim that is allowed: at most what the breaker permits, and what memory has room for."""
        size = min(decision.size, permitted, self.safe_size or permitted, self.pressed_size or permitted)
        return decision if size == decision.size else decision._replace(size=size)

    def pause(self, decision: Wait, now: float) -> Pause:
        """The pause for a policy's wait."""
        # A deliberate wait says nothing about the possible speed.
        self._more_waits = False
        left_s = decision.until - now
        if self.in_hand:
            return Pause(Until.EXECUTOR, now + min(max(left_s, 0.0), TICK_S))
        if left_s <= TOO_SHORT_FOR_BELLS_S:
            return Pause(Until.MOMENT, max(decision.until, now))
        return Pause(Until.BELL, now + min(left_s, LOOK_EVERY_S))

    def refused(self, now: float) -> Pause:
        """The pause while the breaker permits no batch."""
        self.rests()
        return Pause(Until.EXECUTOR if self.in_hand else Until.MOMENT, now + TICK_S)

    def rests(self) -> None:
        """No claim can be made now: a run of consecutive batches ends."""
        self._more_waits = False

    def looked(self, depth: int, now: float) -> None:
        self.learner.looked(depth, now)

    def asks(self, now: float) -> None:
        """A claim is sent. After a rest, it begins a run of consecutive batches."""
        if not self._more_waits and not self.in_hand:
            self._row_since = now

    def found_nothing(self, left: int, now: float) -> None:
        """The claim brought no requests for the model; `left` requests still wait."""
        self._more_waits = left > 0
        # Counts as a look: otherwise a policy that never asks for one would keep an old arrival rate.
        self.learner.looked(left, now)

    def claimed(self, batch: B, size: int, left: int, waited_s: float, middle_s: float, now: float) -> None:
        """`batch` of `size` requests goes to the executor; `left` requests still wait.

        Its oldest request has waited for `waited_s`, its middle one for `middle_s`.
        """
        self.learner.claimed(size, left, waited_s, middle_s, now)
        if not self.in_hand:
            self._front_since = now
        self.in_hand.append(batch)
        self._recent = (self._recent[1], size)
        self._more_waits = left > 0

    def has_read(self, seconds: float) -> None:
        """The payloads of a claim are here; 0: it has none."""
        if seconds or self.read_s:
            self.read_s += (seconds - self.read_s) * (_GAIN if self.read_s else 1.0)

    def finished(self, batch: B, size: int, now: float, *, passes: int = 1, ok: bool = True) -> float:
        """`batch` was computed, in `passes` parts; `ok` unless all of it failed. Returns the seconds of its turn.

        Its turn begins when it comes to the front.
        """
        turn_s = now - self._front_since
        if passes == 1:
            self.pace = self.pace.observe(size, now - self._row_since)
        self.batch_s = turn_s if not self.batch_s else self.batch_s + (turn_s - self.batch_s) * _GAIN
        self._leave(batch, now)
        self.learner.finished(size, turn_s, now, regular=passes == 1 and ok)
        return turn_s

    def lost(self, batch: B, now: float) -> None:
        """`batch` left the executor without an outcome."""
        self._more_waits = False
        self._leave(batch, now)

    def ran_out(self, safe_size: int, size: int, now: float) -> int:
        """Memory had room for only `safe_size` of a batch of `size`. Returns the size that applies from now on."""
        self._whole = max(size, self._whole)
        self._fits = self.safe_size = min(safe_size, self.safe_size or safe_size)
        # Batches that were claimed before the first of them told are one failure.
        if now >= self._try_at:
            self._try_at = now + self._try_s
            self._try_s = min(_LAST_TRY_S, 2 * self._try_s)
        return self.safe_size

    def had_room(self, size: int, now: float) -> bool:
        """Memory had room for a batch of `size`. Returns whether larger ones than before may be tried from now on."""
        if self.safe_size is None or size < self.safe_size:
            return False
        if size > self._fits:
            # What was tried went well: the next failure is a first one.
            self._fits, self._try_s = size, FIRST_TRY_S
        if now < self._try_at:
            return False
        larger = 2 * self.safe_size
        self.safe_size = larger if larger < self._whole else None
        return True

    def forget_memory(self) -> None:
        """Forget that memory ever ran out."""
        self.safe_size = None
        self._whole = 0
        self._try_at, self._try_s = -math.inf, FIRST_TRY_S

    def _leave(self, batch: B, now: float) -> None:
        self.in_hand.remove(batch)
        self._front_since = now
        self._row_since = now


def _time_of(sizes: tuple[int, ...]) -> BatchTime | StepTime:
    return StepTime.of(sizes) if sizes else BatchTime()

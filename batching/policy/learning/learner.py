"""Measures arrivals, batch times and callers from what a claim loop does anyway: looks, claims and finished batches.

    look, claim ──▶ rate of arrivals          finished ──▶ a + b·n, utilisation
    claim ──▶ whether callers come back, and when; whether they come together; the policy's own memory
    look after a batch ──▶ how many callers there are

One per executor, in the worker and in the simulator alike. Costs a few sums per batch and look, none per request.
"""

from __future__ import annotations

from batching.policy.base import NOTHING_LEARNT, Claimed, Learning, Learnt, Policy
from batching.policy.learning.step_time import StepTime
from batching.policy.learning.timing import BatchTime

# Long enough for a rate that a window of 100 ms can rely on, short enough to follow a burst of a second.
RATE_HALF_LIFE_S = 0.25
USE_HALF_LIFE_S = 2.0
# About eight batches.
_HABIT_GAIN = 1 / 8
# About four: bursts are few.
_CROWDING_GAIN = 1 / 4
# As shares of a batch's time: a request that comes so soon after a batch's end has waited for it; so soon after another
# request, it came with it.
_SOON = 0.25
# Within this share of a batch's time, and of the time that callers usually take, no answered caller can have returned.
_AT_ONCE = 0.1
_BEFORE_ANY = 0.5
# After this many batches, the number of callers may have changed.
_UNCOUNTED = 2


class Learner:
    """The learner of one claim loop. Times are seconds on any one clock. The feeder looks and claims, the collector
    finishes; neither needs the other's numbers at once, so there is no lock.
    """

    def __init__(self, policy: Policy, time: BatchTime | StepTime | None = None) -> None:
        self.policy = policy
        self._time = time or BatchTime()
        self._rate = 0.0
        self._use = 0.0
        self._closed_loop_share = NOTHING_LEARNT.closed_loop_share
        self._crowding = NOTHING_LEARNT.crowding
        self._callers = 0
        self._median_return_s = 0.0
        # The size of the last batch, until the callers are counted; and how often they could not be.
        self._answered = 0
        self._uncounted = 0
        # The previous batch: when it left, and whether half of it had come together.
        self._left_at: float | None = None
        self._together = False
        self._memory: object = None
        # Requests that have arrived: those taken, and those that wait.
        self._taken = 0
        self._arrived = 0
        self._counted_at: float | None = None
        self._ended_at = 0.0
        self._ended_before = 0.0
        self._used_at: float | None = None
        self._learnt = Learnt(time=self._time)

    @property
    def policy(self) -> Policy:
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy
        # Evaluated once and not for every batch: here it would cost as much as the rest of a claim.
        self._learning = policy if isinstance(policy, Learning) else None

    @property
    def learnt(self) -> Learnt:
        return self._learnt

    def start_anew(self, time: BatchTime | StepTime) -> None:
        """The model has other sizes: forget the time of a batch."""
        self._time = time
        self._publish()

    def looked(self, depth: int, now: float) -> None:
        self._count_callers(depth, now)
        self._count(depth, now)
        self._publish()

    def claimed(self, size: int, left: int, waited_s: float, middle_s: float, now: float) -> None:
        """A batch was claimed and leaves `left` behind; its oldest request has waited `waited_s`, its middle one
        `middle_s`.
        """
        self._count_callers(size + left, now)
        self._taken += size
        self._count(left, now)
        if (size > 1 or self._callers > 1) and self._ended_at:
            self._closed_loop_share += _HABIT_GAIN * (self._came_soon(size, now - middle_s) - self._closed_loop_share)
        self._count_crowding(size, waited_s, middle_s, now)
        if self._learning is not None:
            self._memory = self._learning.learn(self._memory, Claimed(now, size, waited_s))
        self._publish()

    def finished(self, size: int, took_s: float, now: float, *, regular: bool = True) -> None:
        """A batch has computed for `took_s`. `regular`: it ran as a whole, and nothing failed."""
        if regular:
            self._time = self._time.observe(size, took_s)
        self._ended_before, self._ended_at = self._ended_at, now
        self._answered = size
        if self._used_at is not None and now > self._used_at:
            spent_s = now - self._used_at
            self._use += _gain(spent_s, USE_HALF_LIFE_S) * (min(1.0, took_s / spent_s) - self._use)
        self._used_at = now
        self._publish()

    def _count(self, depth: int, now: float) -> None:
        arrived = self._taken + depth
        if self._counted_at is not None and now > self._counted_at:
            spent_s = now - self._counted_at
            # Another executor may have taken requests that were counted as waiting here.
            came = max(0, arrived - self._arrived)
            self._rate += _gain(spent_s, RATE_HALF_LIFE_S) * (came / spent_s - self._rate)
        elif self._counted_at is not None and arrived > self._arrived:
            return
        self._arrived, self._counted_at = arrived, now

    def _count_callers(self, depth: int, now: float) -> None:
        """Count the callers: those just answered, and those that wait. It is exact only before the first can have
        returned.
        """
        if self._answered:
            if now - self._ended_at <= self._before_any_s():
                self._callers, self._uncounted = self._answered + depth, 0
            elif self._uncounted >= _UNCOUNTED:
                self._callers = 0
            else:
                self._uncounted += 1
            self._answered = 0

    def _before_any_s(self) -> float:
        """The time after a batch's end within which none of its callers can be back."""
        at_once_s = _AT_ONCE * self._time.predict(1)
        # A lone caller who is back in two milliseconds would otherwise be counted twice, and waited for in vain.
        return min(at_once_s, _BEFORE_ANY * self._median_return_s) if self._median_return_s else at_once_s

    def _count_crowding(self, size: int, waited_s: float, middle_s: float, now: float) -> None:
        """Count whether the previous batch came in a burst: only now is it known who came right behind it."""
        soon_s = _SOON * self._time.predict(1)
        if self._left_at is not None:
            together = self._together or 0 <= now - middle_s - self._left_at <= soon_s
            self._crowding += _CROWDING_GAIN * (float(together) - self._crowding)
        self._left_at, self._together = now, size > 1 and waited_s - middle_s <= soon_s

    def _came_soon(self, size: int, came_at: float) -> float:
        """1 if the middle one of `size` requests came right after a batch had ended that may have been as large, else
        0.
        """
        lag_s, of_s = came_at - self._ended_at, self._time.predict(size)
        if lag_s < 0:
            # It came while the last batch was computing.
            lag_s, of_s = came_at - self._ended_before, max(of_s, self._ended_at - self._ended_before)
        if not 0 <= lag_s <= _SOON * of_s:
            return 0.0
        self._median_return_s += _HABIT_GAIN * (lag_s - self._median_return_s)
        return 1.0

    def _publish(self) -> None:
        self._learnt = Learnt(
            self._rate,
            self._use,
            self._closed_loop_share,
            self._crowding,
            self._callers,
            self._median_return_s,
            self._time,
            self._memory,
        )


def _gain(spent_s: float, half_life_s: float) -> float:
    """The weight of an observation over `spent_s` compared with all before it."""
    return float(1 - 0.5 ** (spent_s / half_life_s))

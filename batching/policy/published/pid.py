"""A PID controller of the window, on the waiting time of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from batching.policy.base import Claimed, Decision, Gain, QueueView, Size
from batching.policy.window import in_window

# After a quiet hour, the integral must not take in an hour at once.
_LONGEST_STEP_S = 0.25


@dataclass(frozen=True, slots=True)
class Controller:
    """The state of the controller: the window, the integral, and the last measurement."""

    window_s: float
    integral_s: float
    waited_s: float
    at: float


@dataclass(frozen=True, slots=True)
class PidWindow:
    """Keep the wait of the oldest request at `target_s`: PID in textbook form, one step per batch.

    When requests waited less than the set point, the window grows for larger batches; when they waited more, it
    shrinks, down to 0, which is `WhenIdle`. The window stays within 0 and `max_wait_s`. Against wind-up the integral
    has the same limits, and only moves while that moves the window (clamping: Åström and Hägglund, "Advanced PID
    Control", 2006). The derivative is of the measurement, so that a new set point gives no kick.

    Beyond saturation a longer window would help, not a shorter one; but there batches are full before any window ends.
    """

    name: ClassVar[str] = "pid"

    max_batch_size: Size
    max_wait_s: float = 0.1
    target_s: float = 0.02
    kp: Gain = 0.4
    ki: Gain = 4.0
    kd: Gain = 0.0
    lead_s: float = 0.005

    def decide(self, queue: QueueView, now: float) -> Decision:
        memory = queue.learnt.memory
        window_s = memory.window_s if isinstance(memory, Controller) else 0.0
        return in_window(
            queue,
            now,
            size=self.max_batch_size,
            # An operator may have lowered the maximum since.
            wait_s=min(window_s, self.max_wait_s),
            lead_s=self.lead_s,
        )

    def learn(self, memory: object, batch: Claimed) -> Controller:
        before = memory if isinstance(memory, Controller) else Controller(0.0, 0.0, batch.waited_s, batch.at)
        step_s = min(max(0.0, batch.at - before.at), _LONGEST_STEP_S)
        error_s = self.target_s - batch.waited_s
        slope = (batch.waited_s - before.waited_s) / step_s if step_s else 0.0
        aim_s = self.kp * error_s + before.integral_s - self.kd * slope
        stuck = (aim_s >= self.max_wait_s and error_s > 0) or (aim_s <= 0 and error_s < 0)
        grown_s = before.integral_s if stuck else before.integral_s + self.ki * error_s * step_s
        integral_s = _within(grown_s, self.max_wait_s)
        window_s = _within(self.kp * error_s + integral_s - self.kd * slope, self.max_wait_s)
        return Controller(window_s, integral_s, batch.waited_s, batch.at)


def _within(value: float, high: float) -> float:
    return min(max(0.0, value), high)

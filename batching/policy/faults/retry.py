"""Whether, and after what pause, a failed request is tried again."""

from __future__ import annotations

from dataclasses import dataclass

from batching.policy.faults.suspects import rounds

# Beyond this, deliveries that ended with their worker's death are no longer put down to bad luck.
MAX_DELIVERIES = 20
# The stamp counts no further.
MOST_LOSSES = 9


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015).

    `max_attempts` counts the first try too. A pause that would end at or after the caller's deadline is none: the
    request fails at once, with its real reason, instead of with a time-out later.
    """

    max_attempts: int
    base_s: float = 0.05
    cap_s: float = 5.0

    def pause(self, attempt: int, left_s: float, jitter: float) -> float | None:
        """Seconds before the next try, or None to give up.

        Args:
            attempt: the number of the try that failed, from 1.
            left_s: time to the deadline; infinite without one.
            jitter: uniform over [0, 1).
        """
        if attempt >= self.max_attempts:
            return None
        pause_s = jitter * min(self.cap_s, self.base_s * 2 ** (attempt - 1))
        return pause_s if pause_s < left_s else None

    def exhausted(self, attempt: int, lost: int) -> bool:
        """Whether a request about to be tried for the `attempt`-th time has used up its chances.

        Of executors it may have killed, `lost` counts those that died with it inside. Attempts that failed otherwise
        do not count with them: whoever has been lost among others must have its turn alone.
        """
        if lost > rounds(self.max_attempts):
            return True
        most = self.max_attempts if lost >= MOST_LOSSES else max(MAX_DELIVERIES, self.max_attempts)
        return attempt > most

"""Decides whether, and after which pause, a failed request is tried again."""

from __future__ import annotations

from dataclasses import dataclass

from batching.policy.faults.suspects import rounds

# With more deliveries that ended with their worker's death than this, it is no longer considered bad luck.
MAX_DELIVERIES = 20
# The fast header has one digit for it.
MOST_LOSSES = 9


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015).

    `max_attempts` includes the first try. If the pause would end at or after the caller's deadline, the request fails
    at once with its real reason, instead of with a timeout later.
    """

    max_attempts: int
    base_s: float = 0.05
    cap_s: float = 5.0

    def pause(self, attempt: int, left_s: float, jitter: float) -> float | None:
        """The seconds before the next try, or None to give up.

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
        """Return whether a request about to be tried for the `attempt`-th time has used up its attempts.

        `lost` counts the executors that died with it inside. Attempts that failed otherwise are counted separately,
        since a request that was lost among others must get its try alone.
        """
        if lost > rounds(self.max_attempts):
            return True
        most = self.max_attempts if lost >= MOST_LOSSES else max(MAX_DELIVERIES, self.max_attempts)
        return attempt > most

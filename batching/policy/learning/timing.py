"""The time of a batch of n, a + b·n, learned while it runs.

Weighted least squares over sums, so that only five numbers are kept. Five things are added to the textbook method:

- *forgetting*: a batch counts less by `_KEEP` with each one after it, so the line follows a device that warms up;
- *outliers*: a time far from the line (a garbage collection, a page fault) counts as if it were only `_FAR` spreads
  away (Huber, "Robust Estimation of a Location Parameter", 1964);
- *drift*: when deviations to one side add up, they are not outliers but a changed device, and the past is dropped
  (CUSUM: Page, "Continuous Inspection Schemes", 1954);
- *a cold start*: first batches are slow, never fast, so one of under half the expected time replaces them;
- *sizes that never vary* say nothing about the slope: it is weakly held to its previous value (a ridge).
"""

from __future__ import annotations

import math
from typing import NamedTuple

_KEEP = 0.98
_FAR = 3.0
_DRIFTED = 7.0
_RIDGE = 1e-3
_COLD = 3.0
_LITTLE = 0.1
_ANY_SIZE = 1 << 30
# Timers and schedulers: a spread below this is not trusted.
_LEAST_SPREAD = 0.01
# No clock here tells shorter times apart: batches may even take none.
_LEAST_S = 1e-9


class BatchTime(NamedTuple):
    """A line through the batches seen. `a_s` and `b_s` are never below 0; `spread_s` is the mean deviation.

    `weight` is the amount of evidence: 0 for none, then the number of batches, up to 1 / (1 - 0.98) = 50.
    """

    a_s: float = 0.0
    b_s: float = 0.0
    spread_s: float = 0.0
    weight: float = 0.0
    mean_n: float = 0.0
    mean_s: float = 0.0
    var_n: float = 0.0
    cov: float = 0.0
    above: float = 0.0
    below: float = 0.0

    @property
    def known(self) -> bool:
        return self.weight > 0

    def predict(self, size: int) -> float:
        """Seconds for a batch of `size`."""
        return self.a_s + self.b_s * size

    def late(self, size: int) -> float:
        """The seconds that a batch of `size` seldom exceeds."""
        return self.predict(size) + 2 * self.spread_s

    def fits(self, seconds: float) -> int:
        """The largest batch that seldom takes longer than `seconds`; 0 when not even one request is that quick."""
        left_s = seconds - 2 * self.spread_s - self.a_s
        if left_s < 0:
            return 0
        if left_s >= _ANY_SIZE * self.b_s:
            return _ANY_SIZE
        # A size whose time is exactly `seconds` must not be lost to rounding.
        return int(left_s / self.b_s + 1e-9)

    def keeps_up(self, rate: float, max_batch_size: int) -> int:
        """The smallest batch size with which one executor serves `rate` requests per second; at most the maximum."""
        spare = 1 - rate * self.b_s
        if spare <= 0:
            return max_batch_size
        return max(1, min(max_batch_size, math.ceil(rate * self.a_s / spare)))

    def observe(self, size: int, seconds: float) -> BatchTime:
        """The line with one more batch."""
        if not self.known:
            return _first(size, seconds)
        if self.weight <= _COLD and seconds < self.predict(size) / 2:
            return _first(size, seconds)
        off_s = seconds - self.predict(size)
        usual_s = max(self.spread_s, _LEAST_SPREAD * self.mean_s, _LEAST_S)
        off = min(max(off_s / usual_s, -_FAR), _FAR)
        above, below = max(0.0, self.above + off - 1), max(0.0, self.below - off - 1)
        if self.weight > _COLD:
            if max(above, below) > _DRIFTED:
                # The slope is kept, weakly, until sizes vary again: most often it is the level that has changed. The
                # wide spread lets the next batches count in full.
                var_n, cov = _LITTLE * self.var_n / self.weight, _LITTLE * self.cov / self.weight
                return self._through(1.0, size, seconds, var_n, cov, spread_s=abs(off_s))
            seconds = self.predict(size) + off * usual_s
        kept = self.weight * _KEEP
        weight = kept + 1
        step_n, step_s = size - self.mean_n, seconds - self.mean_s
        share = kept / weight
        gain = max(0.1, 1 / weight)
        return self._through(
            weight,
            self.mean_n + step_n / weight,
            self.mean_s + step_s / weight,
            _KEEP * self.var_n + share * step_n * step_n,
            _KEEP * self.cov + share * step_n * step_s,
            self.spread_s + gain * (min(abs(off_s), 2 * usual_s) - self.spread_s),
            above,
            below,
        )

    def _through(
        self,
        weight: float,
        mean_n: float,
        mean_s: float,
        var_n: float,
        cov: float,
        spread_s: float,
        above: float = 0.0,
        below: float = 0.0,
    ) -> BatchTime:
        """The line for these sums, its slope held to this one's."""
        ridge = _RIDGE * weight
        b_s = max(0.0, (cov + ridge * self.b_s) / (var_n + ridge))
        a_s = mean_s - b_s * mean_n
        if a_s < 0:
            # In proportion to the size: a line cannot start below zero.
            a_s, b_s = 0.0, mean_s / mean_n
        return BatchTime(a_s, b_s, spread_s, weight, mean_n, mean_s, var_n, cov, above, below)


UNKNOWN_TIME = BatchTime()


def _first(size: int, seconds: float) -> BatchTime:
    return BatchTime(seconds, 0.0, seconds * 0.05, 1.0, size, seconds)

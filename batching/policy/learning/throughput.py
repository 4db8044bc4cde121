"""How fast an executor is, from the batches that it has run.

A batch of n takes a fixed time and a time per item. What counts for a queue is the rate of *full* batches, while at low
load only small ones are seen; so a line is fitted through (size, seconds), with old batches forgotten.

`BatchTime` fits a line as well, and is another estimator on purpose. A policy wants the time inside the executor, at
once and up to date: `BatchTime` believes its first batch until a second one contradicts it, and begins anew when the
device has changed. On this one callers are refused: it counts claims and pipe too, says nothing before it is sure, and
never falls back into knowing nothing, since without a rate the door is open.
"""

from __future__ import annotations

from dataclasses import dataclass

_FORGET = 1 / 16
"""Each batch weighs a sixteenth less than the next: a change shows within a dozen batches."""
_OUTLIER = 4.0
_KNOWN_AFTER = 4
"""The first batch is not counted, since it pays for what a model does once; three more make a measurement."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Weighted sums over the batches seen: the empty one has seen none."""

    seen: int = 0
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def observe(self, size: int, seconds: float) -> Throughput:
        """After a batch of `size` that occupied the executor for `seconds`.

        One stall of the machine must not pass for a slow model: what is far off is taken as somewhat off, so that a
        lasting change still shows, a few batches later.
        """
        if not self.seen:
            return Throughput(seen=1)
        if self.known:
            in_proportion = self.y / self.x * size
            seconds = min(seconds, _OUTLIER * max(self.seconds(size), in_proportion))
        keep = 1 - _FORGET
        return Throughput(
            seen=self.seen + 1,
            weight=self.weight * keep + 1,
            x=self.x * keep + size,
            y=self.y * keep + seconds,
            xx=self.xx * keep + size * size,
            xy=self.xy * keep + size * seconds,
        )

    @property
    def known(self) -> bool:
        return self.seen >= _KNOWN_AFTER

    def seconds(self, size: int) -> float:
        """How long a batch of `size` takes; 0 while that is not known.

        Between "the same for any size" and "in proportion to its size", which is as far as sizes can be believed that
        nobody has seen. When all were of one size nothing tells these apart, and the first is taken: nobody is refused
        on account of a guess.
        """
        if not self.known:
            return 0.0
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        variance = self.xx / self.weight - mean_x * mean_x
        if variance < 1e-3 * mean_x * mean_x:
            return mean_y
        slope = (self.xy / self.weight - mean_x * mean_y) / variance
        slope = min(max(slope, 0.0), mean_y / mean_x)
        return mean_y + slope * (size - mean_x)

    def rate(self, max_batch_size: int) -> float:
        """Requests a second in full batches; 0 while that is not known."""
        seconds = self.seconds(max_batch_size)
        return max_batch_size / seconds if seconds > 0 else 0.0

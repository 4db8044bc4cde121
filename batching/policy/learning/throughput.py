"""The throughput of an executor, measured from the batches that it has run.

A batch of n takes a fixed time and a time per item. A queue is drained by *full* batches, while at low load only small
ones are seen. So a line is fitted through (size, seconds), and old batches are forgotten.

`BatchTime` fits a line as well, and is a different estimator on purpose. A policy needs the time inside the executor,
at once and up to date: `BatchTime` trusts its first batch until a second one contradicts it, and starts over when the
device has changed. This estimator is the basis of refusals: it includes claims and pipe, gives no rate before it is
sure, and never loses its rate again, since without a rate every request is let in.
"""

from __future__ import annotations

from typing import NamedTuple

_FORGET = 1 / 16
"""The weight of each new batch: a change shows within a dozen batches."""
_OUTLIER = 4.0
_KNOWN_AFTER = 4
"""The first batch is not counted, since it includes one-time costs of the model; three more make a measurement."""


class Throughput(NamedTuple):
    """Weighted sums over the batches seen; the default is empty."""

    seen: int = 0
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def observe(self, size: int, seconds: float) -> Throughput:
        """The sums after a batch of `size` that occupied the executor for `seconds`.

        One stall of the machine must not look like a slow model: an outlier counts as a smaller deviation, so that a
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
        """The time of a batch of `size`; 0 while it is not known.

        The estimate for an unseen size is bounded by "the same for any size" and "in proportion to its size". When all
        batches had one size, nothing tells these apart, and the first is taken: nobody is refused because of a guess.
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
        """Requests per second in full batches; 0 while that is not known."""
        seconds = self.seconds(max_batch_size)
        return max_batch_size / seconds if seconds > 0 else 0.0

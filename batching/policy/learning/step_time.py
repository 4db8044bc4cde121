"""The time of a batch of a model that is run with a few sizes only: a step function of the requests.

A batch of 33 takes as long as one of 64 where 32 and 64 are the sizes. Each size has its own mean, learned like that of
any batch; a size that has not been seen is on the line through those that have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from batching.batch_sizes import padded
from batching.policy.learning.timing import UNKNOWN_TIME, BatchTime


@dataclass(frozen=True, slots=True)
class StepTime:
    """The learned time of each of `sizes`, with the interface of `BatchTime`. `steps[i]` is that of `sizes[i]`."""

    sizes: tuple[int, ...]
    steps: tuple[BatchTime, ...]
    line: BatchTime = UNKNOWN_TIME

    @classmethod
    def of(cls, sizes: tuple[int, ...]) -> StepTime:
        return cls(sizes, (UNKNOWN_TIME,) * len(sizes))

    @property
    def weight(self) -> float:
        return self.line.weight

    @property
    def known(self) -> bool:
        return self.line.known

    @property
    def a_s(self) -> float:
        return self.line.a_s

    @property
    def b_s(self) -> float:
        return self.line.b_s

    @property
    def spread_s(self) -> float:
        return self.line.spread_s

    def predict(self, size: int) -> float:
        """Seconds for a batch of `size` requests and its padding."""
        shape, time = self._step(size)
        return time.predict(shape)

    def late(self, size: int) -> float:
        """The seconds that a batch of `size` requests and its padding seldom exceeds."""
        shape, time = self._step(size)
        return time.late(shape)

    def fits(self, seconds: float) -> int:
        """The largest size that seldom takes longer than `seconds`; 0 when none does."""
        return max((size for size in self.sizes if self.late(size) <= seconds), default=0)

    def keeps_up(self, rate: float, max_batch_size: int) -> int:
        """The smallest size with which one executor serves `rate` requests per second; at most the maximum."""
        enough = (size for size in self.sizes if rate * self.predict(size) <= size)
        return min(max_batch_size, next(enough, max_batch_size))

    def observe(self, size: int, seconds: float) -> StepTime:
        """The times with one more batch, of `size` requests."""
        shape = padded(size, self.sizes)
        steps = tuple(
            step.observe(shape, seconds) if each == shape else step
            for each, step in zip(self.sizes, self.steps, strict=True)
        )
        return replace(self, steps=steps, line=self.line.observe(shape, seconds))

    def _step(self, size: int) -> tuple[int, BatchTime]:
        shape = padded(size, self.sizes)
        if shape in self.sizes:
            step = self.steps[self.sizes.index(shape)]
            if step.known:
                return shape, step
        return shape, self.line

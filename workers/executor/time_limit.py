"""How long one batch may compute: always a fixed time, or sooner a multiple of what batches take.

The multiple is of the longest of late: a model that is done in 50 ms need not be waited for 3 s when it hangs. It says
nothing before the first batch, nor after a batch that was killed for it until another has come through: else a model
that has become slower, whose batches are all killed, would never be known to be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from config.schema import ModelSettings

# Below it a machine that is busy with something else looks like a model that hangs.
LEAST_S = 1.0
# A batch that is not repeated is forgotten in about fifty others.
_FADES = 0.98


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A value. `factor` 0: the fixed time alone; `longest_s` 0: not known."""

    timeout_s: float
    factor: float = 0.0
    longest_s: float = 0.0

    @classmethod
    def of(cls, model: ModelSettings) -> TimeLimit:
        return cls(model.timeout_s, model.timeout_factor)

    @property
    def seconds(self) -> float:
        if not self.factor or not self.longest_s:
            return self.timeout_s
        return min(self.timeout_s, max(LEAST_S, self.factor * self.longest_s))

    def computed(self, seconds: float) -> TimeLimit:
        """A batch came through in one pass."""
        return replace(self, longest_s=max(seconds, _FADES * self.longest_s)) if self.factor else self

    def exceeded(self) -> TimeLimit:
        """A batch was killed for its time."""
        return replace(self, longest_s=0.0)

    def __str__(self) -> str:
        if self.seconds == self.timeout_s:
            return f"timeout_ms = {self.timeout_s * 1000:.0f}"
        return f"{self.seconds:.1f} s, timeout_factor = {self.factor:g} times the usual time of a batch"

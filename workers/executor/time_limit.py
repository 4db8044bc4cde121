"""The time limit of a batch: a fixed time, or a multiple of recent batch times if that is shorter.

The multiple is that of the longest recent batch: for a model that takes 50 ms, a hang need not last 3 s. It does not
apply before the first batch, nor after a batch was killed for it until another one has succeeded: otherwise a model
that has become slower would have all its batches killed for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from config.schema import ModelSettings

# Below this, a machine that is busy with other work looks like a hanging model.
LEAST_S = 1.0
# A long batch that is not repeated is forgotten after about fifty others.
_FADES = 0.98


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The limit, as a value. `factor` 0: only the fixed time; `longest_s` 0: not known."""

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
        """The limit after a batch that succeeded in one pass."""
        return replace(self, longest_s=max(seconds, _FADES * self.longest_s)) if self.factor else self

    def exceeded(self) -> TimeLimit:
        """The limit after a batch was killed for its time."""
        return replace(self, longest_s=0.0)

    def __str__(self) -> str:
        if self.seconds == self.timeout_s:
            return f"timeout_ms = {self.timeout_s * 1000:.0f}"
        return f"{self.seconds:.1f} s, timeout_factor = {self.factor:g} times the usual time of a batch"

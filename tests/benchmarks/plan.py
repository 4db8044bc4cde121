"""The shapes of load that are measured: models, payloads, connections, and half of what a system can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tests.benchmarks.shapes import LARGE_BYTES, SMALL_BYTES
from tests.benchmarks.system import MODELS, Model

PAYLOADS = (SMALL_BYTES, LARGE_BYTES)
CONNECTIONS = (1, 64, 256, 1000)
_CROWD = 256
# Starting, stopping and checking a system, and the breath between two loads; measured on two cores.
_START_S, _BREATH_S = 6.0, 0.3


@dataclass(frozen=True, slots=True)
class Level:
    """One load: a closed loop of `connections`, or with None an open loop at half of what the closed loops gave."""

    model: Model
    payload_bytes: int
    connections: int | None

    @property
    def title(self) -> str:
        load = "half load" if self.connections is None else f"{self.connections:,} connections"
        return f"{self.model}, {self.payload_bytes:,} bytes, {load}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The levels, and how long each is measured. `with_slow`: systems that do not batch run the 50 ms model too."""

    levels: Sequence[Level]
    rounds: int
    duration_s: int
    warmup_s: int
    with_slow: bool = True

    def of(self, model: Model) -> list[Level]:
        """The levels of a model in the order in which they run: closed loops of a payload, then its open loop.

        Crowds come last: some systems work for long on what a thousand callers left behind.
        """

        def place(level: Level) -> tuple[bool, int, bool, int]:
            connections = level.connections or 0
            return connections > _CROWD, level.payload_bytes, level.connections is None, connections

        return sorted((level for level in self.levels if level.model == model), key=place)

    @property
    def models(self) -> list[Model]:
        return [model for model in MODELS if any(level.model == model for level in self.levels)]

    @property
    def most_connections(self) -> int:
        return max((level.connections or 0 for level in self.levels), default=0)

    def runs(self, model: Model, *, batches: bool) -> bool:
        """True if a system that batches, or does not, is measured with this model."""
        return batches or self.with_slow or model != "50ms"

    def estimate_s(self, batching: Sequence[bool]) -> float:
        """The time of systems that batch or do not, without the queues that slow ones leave behind."""
        each = self.duration_s + self.warmup_s + _BREATH_S
        return self.rounds * sum(
            len(self.of(model)) * each + _START_S
            for batches in batching
            for model in self.models
            if self.runs(model, batches=batches)
        )


def every(
    models: Sequence[Model] = MODELS,
    payloads: Sequence[int] = PAYLOADS,
    connections: Sequence[int] = CONNECTIONS,
    *,
    half_load: bool = True,
) -> tuple[Level, ...]:
    """All combinations, each payload of a model with its half load."""
    loads = [*connections, *([None] if half_load else [])]
    return tuple(Level(*level) for level in product(models, payloads, loads))


# What README shows: every model, payload and number of connections, but not every combination.
SHORT = (
    *every(["noop"], [SMALL_BYTES]),
    *every(["noop"], [LARGE_BYTES], [256]),
    *every(["50ms"], [SMALL_BYTES], [64, 256]),
)
WHOLE = every()

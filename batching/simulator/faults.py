"""Faults of a simulated fleet."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults; by default there are none.

    Args:
        crash_every_s: mean computing time between two deaths of an executor (exponential). The batch inside comes
            back as suspects, the batch behind it uncounted.
        restart_s: time until a dead executor takes batches again.
        error_rate: fraction of batches with a transient error; their requests are tried again after a pause.
        outage_s: start and end of an outage in which every batch fails that way, which opens the breakers.
        slow_rate: fraction of batches that take `slow_factor` times as long.
        timeout_s: a batch that takes longer is killed with its executor.
        max_attempts: maximum number of tries of a request, as in `bunch.toml`.
    """

    crash_every_s: float = math.inf
    restart_s: float = 5.0
    error_rate: float = 0.0
    outage_s: tuple[float, float] = (math.inf, math.inf)
    slow_rate: float = 0.0
    slow_factor: float = 5.0
    timeout_s: float = math.inf
    max_attempts: int = 3

    @property
    def none(self) -> bool:
        return (
            self.crash_every_s == math.inf
            and not self.error_rate
            and not self.slow_rate
            and self.outage_s[0] == math.inf
            and self.timeout_s == math.inf
        )

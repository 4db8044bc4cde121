"""What breaks."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Faults:
    """None by default.

    Args:
        crash_every_s: mean time of computing between two deaths of an executor (exponential). What was inside comes
            back as suspects, what was behind it uncounted.
        restart_s: until a dead executor takes batches again.
        error_rate: the part of batches that raise a transient error; its members are tried again after a pause.
        outage_s: from when to when every batch fails that way, which opens the breakers.
        slow_rate: the part of batches that take `slow_factor` times as long.
        timeout_s: a batch that takes longer is killed with its executor.
        max_attempts: of a request, as in `bunch.toml`.
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

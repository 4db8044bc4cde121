"""A batch between its claim and its outcomes, as its claim loop knows it."""

from __future__ import annotations

from dataclasses import dataclass

from batching.ports import BatchInfo
from batching.request import Request


@dataclass(slots=True)
class InHand:
    """Seconds on the loop's clock. `turn_at` is when it came to the front, `took_s` its cost in a row of batches."""

    requests: list[Request]
    info: BatchInfo
    claimed_at: float
    took_s: float = 0.0
    turn_at: float = 0.0

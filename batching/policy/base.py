"""The vocabulary of every policy: what it sees, and what it can say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias


class Reason(str, Enum):
    """Why a batch left; a label of `bunch_batches_total`."""

    FULL = "full"
    DELAY = "delay"
    IDLE = "idle"
    DEADLINE = "deadline"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class QueueView:
    """What waits for one model, and what its executor has in hand.

    `depth` is None when nobody has looked yet: a policy that does not care saves a look. `oldest_at` and `free_at`
    are seconds on the clock that `decide` is given as `now`; `free_at` is when the executor will be free, or, with
    nothing in hand, when it last came free. `batch_s` is how long a batch has taken of late, `recent` the larger
    size of the last two.
    """

    depth: int | None
    oldest_at: float = -math.inf
    in_hand: int = 0
    free_at: float = -math.inf
    batch_s: float = 0.0
    recent: int = 0


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Claim up to `size` requests now."""

    size: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until`, unless requests arrive or the executor comes free. Infinite: only then."""

    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Look:
    """Ask again with the depth."""


Decision: TypeAlias = Dispatch | Wait | Look


class Policy(Protocol):
    """A rule. The same object serves the claim loop in real time and the simulator in virtual time."""

    def decide(self, queue: QueueView, now: float) -> Decision: ...

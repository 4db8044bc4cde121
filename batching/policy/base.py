"""The vocabulary of every policy: what it sees, and what it can say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from batching.policy.learning.timing import UNKNOWN_TIME, BatchTime


class Reason(str, Enum):
    """Why a batch left; a label of `bunch_batches_total`."""

    FULL = "full"
    DELAY = "delay"
    IDLE = "idle"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Learnt:
    """What one executor's claim loop has learnt of one model; `batching.policy.learning.learner.Learner` makes it.

    `rate` is arrivals per second of late, as this executor sees them: with others on the same queue, between its share
    and the whole. `utilisation` is the share of time that it computes. `closed_loop_share` is the recent share of
    batches whose callers had come just after a batch had ended, as callers do who wait for one answer before they ask
    again. `crowding` is the recent share of batches half of whose requests came with the first one, or as soon as it
    had left. `callers` is how many there were when the last batch ended: those in it, and those who waited; 0 when
    nobody has looked at once. `median_return_s` is the median time from that end until a caller is back. `memory` is
    the policy's own, see `Learning`.
    """

    rate: float = 0.0
    utilisation: float = 0.0
    closed_loop_share: float = 0.75
    crowding: float = 0.0
    callers: int = 0
    median_return_s: float = 0.0
    time: BatchTime = UNKNOWN_TIME
    memory: object = None


NOTHING_LEARNT = Learnt()


@dataclass(frozen=True, slots=True)
class QueueView:
    """What waits for one model, and what its executor has in hand.

    `depth` is None when nobody has looked yet: a policy that does not care saves a look. `oldest_at`, `due_at` and
    `free_at` are seconds on the clock that `decide` is given as `now`. `due_at` is the earliest deadline known among
    those that wait; `free_at` is when the executor will be free, or, with nothing in hand, when it last came free.
    `batch_s` is how long a batch has taken of late, `recent` the larger size of the last two; `idle` counts the
    *other* executors of this model in this worker that have nothing in hand.
    """

    depth: int | None
    oldest_at: float = -math.inf
    in_hand: int = 0
    free_at: float = -math.inf
    batch_s: float = 0.0
    recent: int = 0
    due_at: float = math.inf
    idle: int = 0
    learnt: Learnt = NOTHING_LEARNT


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Claim up to `size` requests now. Those whose deadline is nearer than `margin_s` are refused instead."""

    size: int
    reason: Reason
    margin_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until`, unless requests arrive or the executor comes free. Infinite: only then."""

    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Look:
    """Ask again with the depth."""


Decision: TypeAlias = Dispatch | Wait | Look


@dataclass(frozen=True, slots=True)
class Within:
    """The range of a policy's field, both ends included. A field in seconds (`…_s`) needs none: 0 to a minute."""

    low: float
    high: float
    whole: bool = False


Size = Annotated[int, Within(1, 100_000, whole=True)]
Depth = Annotated[int, Within(0, 10_000_000, whole=True)]
Share = Annotated[float, Within(0, 1)]
Gain = Annotated[float, Within(0, 100)]


class Policy(Protocol):
    """A rule: a frozen value, replaced as a whole when an operator tunes it (`batching.policy.retuned`).

    The same object serves the claim loop in real time and the simulator in virtual time.
    """

    def decide(self, queue: QueueView, now: float) -> Decision: ...


class NamedPolicy(Policy, Protocol):
    """A policy that bunch.toml can name: a dataclass whose fields are what an operator can set.

    `name` is the one in `config.policies`. The first field is `max_batch_size`. A policy that waits has `max_wait_s`,
    with the default that its source uses. Every other field has a default as well, and a range in its annotation.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]

    @property
    def max_batch_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Claimed:
    """A batch that has just left, for policies that learn. `waited_s` is its oldest request's time in the queue."""

    at: float
    size: int
    waited_s: float


@runtime_checkable
class Learning(Protocol):
    """A policy with a state of its own. It is a value too: `learn` makes the next one, views carry it as `memory`.

    `memory` may be None, or what another policy has left behind.
    """

    def learn(self, memory: object, batch: Claimed) -> object: ...

"""The vocabulary of every policy: the views that it gets, and the decisions that it returns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

from batching.policy.learning.step_time import StepTime
from batching.policy.learning.timing import UNKNOWN_TIME, BatchTime


class Reason(str, Enum):
    """The reason why a batch was dispatched; a label of `bunch_batches_total`."""

    FULL = "full"
    DELAY = "delay"
    IDLE = "idle"
    DEADLINE = "deadline"


class Learnt(NamedTuple):
    """The figures that one executor's claim loop has learned about one model, made by
    `batching.policy.learning.learner`.

    `rate` is the recent arrivals per second as this executor sees them; with other executors on the queue, it is
    between its share and the whole. `utilisation` is the share of time that it computes. `closed_loop_share` is the
    recent share of batches whose requests came just after a batch had ended, as they do in a closed loop. `crowding` is
    the recent share of batches half of whose requests came with the first one, or as soon as it had left. `callers` is
    the number of callers when the last batch ended: the requests in it, and those that waited; 0 without a look at that
    time. `median_return_s` is the median time from that end until a caller is back. `memory` is the policy's own state,
    see `Learning`.
    """

    rate: float = 0.0
    utilisation: float = 0.0
    closed_loop_share: float = 0.75
    crowding: float = 0.0
    callers: int = 0
    median_return_s: float = 0.0
    time: BatchTime | StepTime = UNKNOWN_TIME
    memory: object = None


NOTHING_LEARNT = Learnt()


class QueueView(NamedTuple):
    """The queue of one model, and the batches that its executor has in hand.

    `depth` is None before a look: a policy that does not need it saves the look. `oldest_at`, `due_at` and `free_at`
    are seconds on the clock of `now` in `decide`. `due_at` is the earliest known deadline of the waiting requests;
    `free_at` is when the executor will be free, or, with nothing in hand, when it last came free. `batch_s` is the
    recent time of a batch, `read_s` that of reading its payloads after the claim, `recent` the larger size of the last
    two; `idle` counts the *other* executors of this model in this worker that have nothing in hand.
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
    read_s: float = 0.0


class Dispatch(NamedTuple):
    """Claim up to `size` requests now. Requests whose deadline is nearer than `margin_s` are refused instead."""

    size: int
    reason: Reason
    margin_s: float = 0.0


class Wait(NamedTuple):
    """Do nothing until `until`, unless requests arrive or the executor comes free. Infinite: wait only for these."""

    until: float = math.inf


class Look(NamedTuple):
    """Look at the queue, and decide again with its depth.

    With `then`, that is what the policy would decide if at least `least` waited, and no known deadline were nearer than
    `calm_s`: the look and the claim may be one call.
    """

    then: Dispatch | None = None
    least: int = 0
    calm_s: float = 0.0


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

    `name` is its name in `config.policies`. The first field is `max_batch_size`. A policy that waits has `max_wait_s`,
    with the default of its source. Every other field has a default as well, and a range in its annotation.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]

    @property
    def max_batch_size(self) -> int: ...


class Claimed(NamedTuple):
    """A batch that has just been claimed, for policies that learn. `waited_s` is the time of its oldest request in the
    queue.
    """

    at: float
    size: int
    waited_s: float


@runtime_checkable
class Learning(Protocol):
    """A policy with state. The policy is a value too: `learn` makes the next state, and views carry it as `memory`.

    `memory` may be None, or the state of another policy.
    """

    def learn(self, memory: object, batch: Claimed) -> object: ...

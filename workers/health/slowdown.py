"""The rule that an executor which takes far longer for a batch than it did is degraded. Pure.

    batch ──kind──▶ 16 of a kind are a window ──its quick times / the usual ones──▶ the last 8 windows ──▶ slow or not

A batch is compared with earlier batches of its kind alone: as many inputs, as large ones, as large outputs, and where
stages overlap, with or without other batches beside it. So neither another mix of batch sizes nor longer texts nor more
load look like a slower device. Of a window its lower quartile counts, since a
busy host delays some batches and speeds none up. The usual time follows a quicker window soon, and a slower one only by
a factor of two in hours: a device that becomes hot over minutes must not become the usual one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

WINDOW = 16
RECENT = 8
# Slow from this factor on, and until it is below the other one.
ENTER, LEAVE = 2.0, 1.5
# The windows of a kind from which its usual time is learnt before another one is compared with it.
LEARNING = 3
MAX_KINDS = 128
# The usual time moves by this share of the way towards a quicker window, and doubles in this time of slower ones.
_QUICKER_SHARE = 0.25
_DOUBLES_IN_S = 4 * 3600.0
# Between two windows at most this long counts, so that a night without requests forgets nothing.
_MOST_BETWEEN_S = 60.0
# A smaller difference is the host's: the pipe, the interpreter, a scheduler's slice.
_LEAST_S = 0.002


class Kind(NamedTuple):
    """Batches that take about the same time. The numbers are logarithms: of inputs and of the largest input to the base
    √2, of all inputs' and of all outputs' bytes to the base 2. `beside`: stages of others ran beside its own.
    """

    inputs: int
    largest: int
    input_bytes: int
    output_bytes: int
    beside: bool = False

    @classmethod
    def of(cls, inputs: int, largest: int, input_bytes: int, output_bytes: int, *, beside: bool = False) -> Kind:
        return cls(_steps(inputs, 2), _steps(largest, 2), _steps(input_bytes, 1), _steps(output_bytes, 1), beside)


@dataclass(frozen=True, slots=True)
class History:
    """The past of one kind, in seconds: its usual time, and the times of the window that is still open."""

    usual_s: float = math.inf
    windows: int = 0
    closed_at: float = 0.0
    open: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Slow:
    """A finding: batches take `factor` times as long as usual. The last window had batches of `inputs`, in seconds."""

    factor: float
    inputs: int
    took_s: float
    usual_s: float

    def __str__(self) -> str:
        example = f"a batch of {self.inputs}: {_ms(self.took_s)} ms, {_ms(self.usual_s)} ms before"
        return f"takes {self.factor:.1f} times as long as before ({example})"


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The known speed of one executor; `slow` is None while it is as quick as usual."""

    slow: Slow | None = None
    # The least recently seen first.
    kinds: Mapping[Kind, History] = field(default_factory=lambda: MappingProxyType({}))
    # By how much longer than usual the last windows took.
    recent: tuple[float, ...] = ()

    def observe(self, kind: Kind, inputs: int, seconds: float, now: float) -> Slowdown:
        """The same with one more batch of `inputs`, computed in `seconds`, at `now` on any one clock."""
        past = self.kinds.get(kind, History())
        times = (*past.open, seconds)
        if len(times) < WINDOW:
            return replace(self, kinds=self._with(kind, replace(past, open=times)))
        took_s = sorted(times)[WINDOW // 4]
        kinds = self._with(kind, _learnt(past, took_s, now))
        if past.windows < LEARNING:
            return replace(self, kinds=kinds)
        # A difference that says nothing counts as none.
        factor = took_s / past.usual_s if took_s - past.usual_s >= _LEAST_S else 1.0
        recent = (*self.recent[1 - RECENT :], factor)
        middle = median(recent)
        is_slow = middle >= LEAVE if self.slow else len(recent) == RECENT and middle >= ENTER
        slow = Slow(middle, inputs, took_s, past.usual_s) if is_slow else None
        return Slowdown(slow, kinds, recent)

    def restarted(self) -> Slowdown:
        """The same for another process with the same model: what is usual stays, what was seen lately does not."""
        kinds = {kind: replace(past, open=()) for kind, past in self.kinds.items()}
        return Slowdown(kinds=MappingProxyType(kinds))

    def _with(self, kind: Kind, past: History) -> Mapping[Kind, History]:
        kinds = {each: known for each, known in self.kinds.items() if each != kind}
        if len(kinds) == MAX_KINDS:
            del kinds[next(iter(kinds))]
        kinds[kind] = past
        return MappingProxyType(kinds)


def _learnt(past: History, took_s: float, now: float) -> History:
    """The history with one more window, which is closed."""
    usual_s, windows = past.usual_s, past.windows + 1
    if past.windows < LEARNING or not usual_s:
        usual_s = min(usual_s, took_s)
    elif took_s < usual_s:
        usual_s *= (took_s / usual_s) ** _QUICKER_SHARE
    else:
        between_s = min(max(now - past.closed_at, 0.0), _MOST_BETWEEN_S)
        usual_s = min(took_s, usual_s * 2 ** (between_s / _DOUBLES_IN_S))
    return History(usual_s, windows, now)


def _steps(value: int, per_doubling: int) -> int:
    return math.ceil(per_doubling * math.log2(value)) if value > 1 else 0


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g}"

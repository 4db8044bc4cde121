"""The port to the queues, and its Redis implementation: one script per arrow, one call per batch.

queues ──claim──▶ lease ──finish──▶ results and replies
   ▲                │
   └──give_back─────┘
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Protocol, cast

from redis import Redis

from batching.claim.bell import Bell
from batching.claim.calls import ShardCalls, give_back_call, peek_call
from batching.claim.values import DEFAULT_KEEP, Blame, Claim, Keep, Settled, View
from batching.coalescing import Finished
from batching.policy.tiers import DEFAULT_AGEING_S, DEFAULT_SHARES
from config.keys import Shard, model_of_bell
from config.redis import Call, Line
from config.schema import MAX_BATCH_BYTES
from config.tracked_line import TrackedLine

__all__ = ["BatchStore", "Blame", "Claim", "Keep", "RedisBatchStore", "Settled", "View", "give_back"]

# A wait for many models is repeated; well under the client's timeout.
ASK_S = 2.0


class BatchStore(Protocol):
    """The queues and leases of one worker. Every call is atomic and may be repeated with the same batch id."""

    def look(self, model: str, paused: AbstractSet[int] = frozenset()) -> View:
        """The requests that could be claimed now; queues of `paused` ranks look empty."""

    def claim(
        self,
        model: str,
        batch_id: str,
        size: int,
        max_attempts: int = 3,
        paused: AbstractSet[int] = frozenset(),
        *,
        margin_ms: int = 0,
        max_bytes: int = MAX_BATCH_BYTES,
        when_rung_s: float = 0.0,
        least: int = 0,
        calm_ms: int = 0,
    ) -> Claim:
        """Claim up to `size` requests to run, highest tier first, and all expired ones that were found on the way.

        With a margin, requests whose deadline is nearer than that come out as hopeless. The messages have at most
        `max_bytes` together, unless there is only one.

        `when_rung_s`: wait for the model's bell first, for about so long at most, and claim then in any case. With
        `least` nothing is claimed if fewer wait, or if the oldest of a tier has its deadline within `calm_ms`.

        Suspects of an executor's death are claimed separately, see `batching.policy.faults.suspects`.
        """

    def finish(self, batch_id: str, outcomes: Sequence[Settled], *, last: bool) -> Finished:
        """Store the outcomes and send the replies; with `last` the lease ends. If the lease is gone, nothing is
        stored.
        """

    def put_aside(
        self, model: str, batch_id: str, pauses: Sequence[tuple[int, int]], *, last: bool, count_attempt: bool = True
    ) -> bool:
        """Queue requests again after a pause, as `(position, pause in ms)`. False: the lease was gone."""

    def give_back(self, model: str, batch_id: str, blame: Blame, losses: int = 1) -> int:
        """Return the requests of the lease to the head of their queues; returns how many, -1 when the lease was gone.

        A suspect then has `losses` losses, or one more than before if that is higher.
        """

    def wait_for_bells(self, models: Sequence[str], timeout_s: float) -> str | None:
        """Block until a producer rings for one of the models, for at most `timeout_s`; returns which."""

    @property
    def is_told(self) -> bool:
        """True if `wait_for_changes` ends when something comes to a queue that `peek` has looked at."""

    def wait_for_changes(self, models: Sequence[str], timeout_s: float) -> str | None:
        """`wait_for_bells`, and return None early when something has changed since the last `peek`.

        For the thread that peeks alone.
        """

    def leave_bell(self) -> None:
        """The calling thread does not wait for a while: end its open BLPOP."""

    def ring(self, model: str) -> None:
        """Wake a loop that waits for the model, in any worker."""

    def peek(self, paused: Mapping[str, AbstractSet[int]]) -> AbstractSet[str]:
        """The models, each given with its paused ranks, that have something to claim."""


class RedisBatchStore:
    """`BatchStore` over one Redis. Each calling thread has a connection; a thread that waits has two."""

    def __init__(
        self,
        redis: Redis,
        worker_id: str,
        shard: Shard | None = None,
        shares: Sequence[float] = DEFAULT_SHARES,
        keep: Keep = DEFAULT_KEEP,
        ageing_s: float = DEFAULT_AGEING_S,
    ) -> None:
        self._redis = redis
        self._lines = threading.local()
        self._keys = shard or Shard()
        self._calls = ShardCalls(self._keys, worker_id, shares, keep, ageing_s)
        self._last_peek: tuple[Mapping[str, AbstractSet[int]], tuple[str, ...], Call] | None = None
        self._lookout = TrackedLine(redis)

    @property
    def _line(self) -> Line:
        line: Line | None = getattr(self._lines, "line", None)
        if line is None:
            line = self._lines.line = Line(self._redis)
        return line

    def look(self, model: str, paused: AbstractSet[int] = frozenset()) -> View:
        (seen,) = self._calls.seen(self._line.again(self._calls.look(model)))
        return seen.without(paused).view()

    def claim(
        self,
        model: str,
        batch_id: str,
        size: int,
        max_attempts: int = 3,
        paused: AbstractSet[int] = frozenset(),
        *,
        margin_ms: int = 0,
        max_bytes: int = MAX_BATCH_BYTES,
        when_rung_s: float = 0.0,
        least: int = 0,
        calm_ms: int = 0,
    ) -> Claim:
        about = (model, batch_id, size, max_attempts, paused)
        call = self._calls.claim(*about, margin_ms=margin_ms, max_bytes=max_bytes, least=least, calm_ms=calm_ms)
        line = self._line
        reply = line.when_rung(self._keys.bell(model), when_rung_s, call) if when_rung_s else line.again(call)
        entries, _, seen = self._calls.claimed(reply)
        return Claim(batch_id, entries, seen.without(paused).view())

    def finish(self, batch_id: str, outcomes: Sequence[Settled], *, last: bool) -> Finished:
        return self._calls.finished(self._line.again(self._calls.finish(batch_id, outcomes, last=last)))

    def put_aside(
        self, model: str, batch_id: str, pauses: Sequence[tuple[int, int]], *, last: bool, count_attempt: bool = True
    ) -> bool:
        call = self._calls.put_aside(model, batch_id, pauses, last=last, count_attempt=count_attempt)
        return cast("int", self._line.again(call)) >= 0

    def give_back(self, model: str, batch_id: str, blame: Blame, losses: int = 1) -> int:
        return cast("int", self._line.again(self._calls.give_back(model, batch_id, blame, losses)))

    def wait_for_bells(self, models: Sequence[str], timeout_s: float) -> str | None:
        return self._wait(models, timeout_s)

    @property
    def is_told(self) -> bool:
        return self._lookout.fileno is not None

    def wait_for_changes(self, models: Sequence[str], timeout_s: float) -> str | None:
        return self._wait(models, timeout_s, self._lookout.fileno)

    def _wait(self, models: Sequence[str], timeout_s: float, leave_for: int | None = None) -> str | None:
        bell: Bell | None = getattr(self._lines, "bell", None)
        if bell is None:
            bell = self._lines.bell = Bell(self._redis)
        ask_s = 0.0 if len(models) == 1 else ASK_S
        rung = bell.wait([*map(self._keys.bell, models)], timeout_s, ask_s, leave_for)
        return None if rung is None else model_of_bell(rung, self._keys.tag)

    def leave_bell(self) -> None:
        bell: Bell | None = getattr(self._lines, "bell", None)
        if bell is not None:
            bell.close()

    def ring(self, model: str) -> None:
        # There may be a token by now. Ringing twice wakes one loop too many, which finds nothing.
        self._line.command("LPUSH", self._keys.bell(model), 1)

    def peek(self, paused: Mapping[str, AbstractSet[int]]) -> AbstractSet[str]:
        models, call = self._peek_of(paused)
        # First, so that what changes from now on is announced again.
        self._lookout.heard()
        return {models[number - 1] for number in self._lookout.again(call)}

    def _peek_of(self, paused: Mapping[str, AbstractSet[int]]) -> tuple[tuple[str, ...], Call]:
        """An idle worker asks about the same queues again and again, so the call is cached."""
        last = self._last_peek
        if last is None or last[0] != paused:
            models = tuple(paused)
            call = peek_call([*chain.from_iterable(map(self._calls.waiting_keys, models))], tuple(paused.values()))
            last = self._last_peek = dict(paused), models, call
        return last[1:]


def give_back(line: Line, keys: Shard, worker_id: str, model: str, batch_id: str, blame: Blame, losses: int = 1) -> int:
    """Run `give_back.lua` for a lease of `worker_id`, which need not be this process."""
    return cast("int", line.again(give_back_call(keys, worker_id, model, batch_id, blame, losses)))

"""The port to the queues, and its Redis implementation: one script per arrow, one call per batch.

queues ──claim──▶ lease ──finish──▶ results and replies
   ▲                │
   └──give_back─────┘
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any, Protocol, cast

import msgspec
from redis import Redis

from batching.claim.bell import Bell
from batching.claim.lease import Entry, entries_of
from batching.coalescing import Coalesced, Finished
from batching.outcome_rows import outcome_rows
from batching.policy.faults.suspects import suspect_sizes
from batching.policy.tiers import AGED_SHARE, DEFAULT_AGEING_S, DEFAULT_SHARES
from batching.script_args import (
    CLAIM,
    FINISH,
    GIVE_BACK,
    LOOK,
    PEEK,
    PUT_ASIDE,
    AnswerArgs,
    AnswerKeys,
    ClaimArgs,
    ClaimKeys,
    FinishArgs,
    FinishKeys,
    GiveBackArgs,
    GiveBackKeys,
    LookKeys,
    PeekArgs,
    PutAsideArgs,
    PutAsideKeys,
)
from config.keys import Shard, model_of_bell
from config.redis import Call, Line, Script, TrackedLine
from config.schema import MAX_BATCH_BYTES
from config.tiers import TIERS

# A wait for many models is repeated; well under the client's timeout.
_ASK_S = 2.0
_TIER_NAMES = ";".join(tier.value for tier in TIERS)


@dataclass(frozen=True, slots=True)
class View:
    """The waiting requests of a model. Times are Redis time in ms; `oldest_ms` is 0 when nothing waits or it is not
    known.

    `due_ms` is the earliest deadline of the queues' heads, 0 when they have none.
    """

    now_ms: int
    depths: tuple[int, ...]
    oldest_ms: int
    due_ms: int = 0

    @property
    def depth(self) -> int:
        return sum(self.depths)


@dataclass(frozen=True, slots=True)
class Claim:
    batch_id: str
    entries: tuple[Entry, ...]
    view: View


class Settled(msgspec.Struct, frozen=True):
    """One outcome, ready to be stored.

    `reply_to` is a frontend's channel, or empty; `dead_letter` is the record of a request that was given up, or empty.
    `announce`: publish on Celery's own channel too, since a client may wait there. `asked`: it answers other requests
    too. `foreign`: it does not replace a result that a frontend's request has stored under the same id.
    """

    position: int
    task_id: str
    ttl_ms: int
    reply_to: str
    result: bytes
    dead_letter: bytes = b""
    announce: bool = True
    asked: Coalesced | None = None
    foreign: bool = False


class Blame(Enum):
    """The reason why a batch is given back, which decides what is counted."""

    NOTHING = 0
    """The batch never reached an executor."""
    ATTEMPT = 1
    """The worker died; that says nothing about the requests."""
    SUSPECT = 2
    """The executor died, and one of the requests may be the cause."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Limits of the dead letters (count and age) and of the cached answers (bytes)."""

    count: int = 1000
    age_ms: int = 7 * 24 * 3600 * 1000
    answer_bytes: int = 64 * 1024 * 1024


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
    ) -> Claim:
        """Claim up to `size` requests to run, highest tier first, and all expired ones that were found on the way.

        With a margin, requests whose deadline is nearer than that come out as hopeless. The messages have at most
        `max_bytes` together, unless there is only one.

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
        keep: Keep = Keep(),
        ageing_s: float = DEFAULT_AGEING_S,
    ) -> None:
        self._redis = redis
        self._lines = threading.local()
        self._worker_id = worker_id
        self._keys = shard or Shard()
        self._shares = tuple(shares)
        self._keep = keep
        self._ageing_ms = int(ageing_s * 1000)
        self._look = Script(LOOK.text)
        self._last_peek: tuple[Mapping[str, AbstractSet[int]], tuple[str, ...], Call] | None = None
        self._peek = Script(PEEK.text)
        self._lookout = TrackedLine(redis)
        self._claim = Script(CLAIM.text)
        self._finish = Script(FINISH.text)
        self._put_aside = Script(PUT_ASIDE.text)

    @property
    def _line(self) -> Line:
        line: Line | None = getattr(self._lines, "line", None)
        if line is None:
            line = self._lines.line = Line(self._redis)
        return line

    def look(self, model: str, paused: AbstractSet[int] = frozenset()) -> View:
        keys = (*LookKeys(delayed=self._keys.delayed(model)), *self._keys.queues(model))
        now, depths, oldest, due = self._line.script(self._look, keys, ())
        return _view(now, depths, oldest, due, paused)

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
    ) -> Claim:
        keys = self._keys
        queues = keys.queues(model)
        now, marks, messages, depths, oldest, due = self._line.script(
            self._claim,
            (
                *ClaimKeys(
                    lease=keys.lease(batch_id),
                    leases=keys.leases(self._worker_id),
                    workers=keys.workers(),
                    cancelled=keys.cancelled(),
                    share=keys.share(model),
                    delayed=keys.delayed(model),
                    bell=keys.bell(model),
                ),
                *queues,
                *map(keys.held, queues),
            ),
            (
                *ClaimArgs(
                    batch_id=batch_id,
                    worker_id=self._worker_id,
                    model=model,
                    size=size,
                    ageing_ms=self._ageing_ms,
                    aged_share=AGED_SHARE,
                    margin_ms=margin_ms,
                    max_bytes=max_bytes,
                ),
                *self._shares_without(paused),
                *suspect_sizes(size, max_attempts),
            ),
        )
        return Claim(batch_id, entries_of(marks, messages), _view(now, depths, oldest, due, paused))

    def _shares_without(self, paused: AbstractSet[int]) -> Sequence[float]:
        """The shares of the tiers; a paused tier has a negative share, which the claim script recognises."""
        return [-1 if rank in paused else share for rank, share in enumerate(self._shares)] if paused else self._shares

    def finish(self, batch_id: str, outcomes: Sequence[Settled], *, last: bool) -> Finished:
        channels = {
            reply_to: i for i, reply_to in enumerate(dict.fromkeys(o.reply_to for o in outcomes if o.reply_to), 1)
        }
        keys: tuple[str, ...] = FinishKeys(
            lease=self._keys.lease(batch_id), leases=self._keys.leases(self._worker_id), dead=self._keys.dead()
        )
        asked = next((each.asked for each in outcomes if each.asked is not None), None)
        common: tuple[object, ...] = ()
        if asked is not None:
            # All requests of a batch have the same model and the same claim time.
            keys += self._keys_of_asked(asked.model)
            common = AnswerArgs(max_bytes=self._keep.answer_bytes, claimed_ms=asked.claimed_ms, tiers=_TIER_NAMES)
        args: list[Any] = [
            *FinishArgs(
                batch_id=batch_id,
                last=int(last),
                max_dead=self._keep.count,
                max_dead_age_ms=self._keep.age_ms,
                channels=len(channels),
                common=len(common),
            ),
            *channels,
        ]
        args += outcome_rows(outcomes, channels)
        args += common
        stored, *others = self._line.script(self._finish, keys, args)
        refused = tuple(row[1:].decode() for row in others if row.startswith(b"!"))
        dropped = tuple(row[1:].decode() for row in others if row.startswith(b"~"))
        return Finished(stored >= 0, tuple(others[len(refused) + len(dropped) :]), refused, dropped)

    def _keys_of_asked(self, model: str) -> tuple[str, ...]:
        keys = self._keys
        names = AnswerKeys(
            cached=keys.cached(),
            kept=keys.kept(),
            edition=keys.edition(model),
            asked=keys.asked(),
            joined=keys.joined(),
            cancelled=keys.cancelled(),
            bell=keys.bell(model),
        )
        return (*names, *keys.queues(model))

    def put_aside(
        self, model: str, batch_id: str, pauses: Sequence[tuple[int, int]], *, last: bool, count_attempt: bool = True
    ) -> bool:
        keys = PutAsideKeys(
            lease=self._keys.lease(batch_id),
            leases=self._keys.leases(self._worker_id),
            delayed=self._keys.delayed(model),
        )
        head = PutAsideArgs(batch_id=batch_id, last=int(last), attempt=int(count_attempt))
        # Each is a row of `Pause`.
        args = (*head, *chain.from_iterable(pauses))
        return cast("int", self._line.script(self._put_aside, keys, args)) >= 0

    def give_back(self, model: str, batch_id: str, blame: Blame, losses: int = 1) -> int:
        return give_back(self._line, self._keys, self._worker_id, model, batch_id, blame, losses)

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
        ask_s = 0.0 if len(models) == 1 else _ASK_S
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
            names = ((self._keys.delayed(model), *self._keys.queues(model)) for model in models)
            args = (*PeekArgs(queues=len(TIERS)), *map(_open, paused.values()))
            last = self._last_peek = dict(paused), models, Call(self._peek, tuple(chain.from_iterable(names)), args)
        return last[1:]


def _open(paused: AbstractSet[int]) -> str:
    return "".join("0" if rank in paused else "1" for rank in range(len(TIERS))) if paused else "1" * len(TIERS)


_GIVE_BACK = Script(GIVE_BACK.text)


def give_back(line: Line, keys: Shard, worker_id: str, model: str, batch_id: str, blame: Blame, losses: int = 1) -> int:
    """Run `give_back.lua` for a lease of `worker_id`, which need not be this process."""
    names = GiveBackKeys(lease=keys.lease(batch_id), leases=keys.leases(worker_id), bell=keys.bell(model))
    args = GiveBackArgs(batch_id=batch_id, blame=blame.value, losses=losses)
    return cast("int", line.script(_GIVE_BACK, (*names, *keys.queues(model)), args))


def _view(now: int, depths: Sequence[int], oldest: Sequence[int], due: Sequence[int], paused: AbstractSet[int]) -> View:
    if paused:
        rows = (depths, oldest, due)
        depths, oldest, due = ([0 if rank in paused else each for rank, each in enumerate(row)] for row in rows)
    # A time in the future was written before Redis' clock went back: the age is not known.
    known = [each for each in oldest if 0 < each <= now]
    return View(int(now), tuple(depths), min(known, default=0), min(filter(None, due), default=0))

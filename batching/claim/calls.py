"""The calls of a batch store to one shard, and what their replies mean; nothing is sent here.

`RedisBatchStore` sends them one by one, `ShardedBatchStore` those to several shards together.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any

import msgspec

from batching.claim.lease import Entry, entries_of
from batching.claim.values import DEFAULT_KEEP, Blame, Keep, Settled, View
from batching.coalescing import Finished
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
    LookArgs,
    PeekArgs,
    PutAsideArgs,
    PutAsideKeys,
)
from config.keys import Shard
from config.redis import Call, Script
from config.tiers import TIERS

_TIER_NAMES = ";".join(tier.value for tier in TIERS)
_LOOK, _PEEK, _CLAIM = Script(LOOK.text), Script(PEEK.text), Script(CLAIM.text)
_FINISH, _PUT_ASIDE, _GIVE_BACK = Script(FINISH.text), Script(PUT_ASIDE.text), Script(GIVE_BACK.text)


class Seen(msgspec.Struct, frozen=True):
    """What waits for a model in one shard, per tier: depths, when the oldest came, and its deadline, in ms of Redis
    time; 0 where it is not known.
    """

    now_ms: int
    depths: Sequence[int]
    oldest_ms: Sequence[int]
    due_ms: Sequence[int]

    def without(self, paused: AbstractSet[int]) -> Seen:
        """The same, with nothing in the paused tiers."""
        if not paused:
            return self
        rows = (self.depths, self.oldest_ms, self.due_ms)
        return Seen(self.now_ms, *([0 if rank in paused else n for rank, n in enumerate(row)] for row in rows))

    def view(self) -> View:
        # A time in the future was written before Redis' clock went back: the age is not known.
        known = [each for each in self.oldest_ms if 0 < each <= self.now_ms]
        return View(
            int(self.now_ms), tuple(self.depths), min(known, default=0), min(filter(None, self.due_ms), default=0)
        )


class ShardCalls:
    """The calls to one shard of one worker."""

    def __init__(
        self,
        keys: Shard,
        worker_id: str,
        shares: Sequence[float] = DEFAULT_SHARES,
        keep: Keep = DEFAULT_KEEP,
        ageing_s: float = DEFAULT_AGEING_S,
    ) -> None:
        self.keys = keys
        self._worker_id = worker_id
        self._shares = tuple(shares)
        self._keep = keep
        self._ageing_ms = int(ageing_s * 1000)

    def look(self, model: str) -> Call:
        return look_call([self], model)

    @staticmethod
    def seen(reply: Any) -> list[Seen]:
        """What a look has seen of each of its shards."""
        now_ms, *rows = reply
        return [Seen(now_ms, *rows[at : at + 3]) for at in range(0, len(rows), 3)]

    def claim(
        self,
        model: str,
        batch_id: str,
        size: int,
        max_attempts: int,
        paused: AbstractSet[int],
        *,
        margin_ms: int,
        max_bytes: int,
        takes: Sequence[int] | None = None,
        least: int = 0,
        calm_ms: int = 0,
    ) -> Call:
        """`takes`: the requests of each tier; None: as the shard's own rule has it."""
        keys, queues = self.keys, self.keys.queues(model)
        names = ClaimKeys(
            lease=keys.lease(batch_id),
            leases=keys.leases(self._worker_id),
            workers=keys.workers(),
            cancelled=keys.cancelled(),
            share=keys.share(model),
            delayed=keys.delayed(model),
            bell=keys.bell(model),
        )
        head = ClaimArgs(
            batch_id=batch_id,
            worker_id=self._worker_id,
            model=model,
            size=size,
            ageing_ms=self._ageing_ms,
            aged_share=AGED_SHARE,
            margin_ms=margin_ms,
            max_bytes=max_bytes,
            takes="" if takes is None else ",".join(map(str, takes)),
            least=least,
            calm_ms=calm_ms,
        )
        args = (*head, *self._shares_without(paused), *suspect_sizes(size, max_attempts))
        return Call(_CLAIM, (*names, *queues, *map(keys.held, queues)), args)

    @staticmethod
    def claimed(reply: Any, first: int = 0) -> tuple[tuple[Entry, ...], int, Seen]:
        """The reply to `claim`: the entries, the number of places of the lease, and what waits now.

        The positions of the entries count from behind `first`.
        """
        now_ms, marks, messages, *waiting = reply
        return entries_of(marks, messages, first), len(messages), Seen(now_ms, *waiting)

    def _shares_without(self, paused: AbstractSet[int]) -> Sequence[float]:
        """The shares of the tiers; a paused tier has a negative share, which the claim script recognises."""
        return [-1 if rank in paused else share for rank, share in enumerate(self._shares)] if paused else self._shares

    def finish(self, batch_id: str, outcomes: Sequence[Settled], *, last: bool, first: int = 0) -> Call:
        """The positions of the outcomes count from behind `first`."""
        channels, words, asked = outcome_rows(outcomes, first)
        keys: tuple[str, ...] = FinishKeys(
            lease=self.keys.lease(batch_id), leases=self.keys.leases(self._worker_id), dead=self.keys.dead()
        )
        common: tuple[object, ...] = ()
        if asked is not None:
            # All requests of a batch have the same model and the same claim time.
            keys += self._keys_of_asked(asked.model)
            common = AnswerArgs(max_bytes=self._keep.answer_bytes, claimed_ms=asked.claimed_ms, tiers=_TIER_NAMES)
        head = FinishArgs(
            batch_id=batch_id,
            last=int(last),
            max_dead=self._keep.count,
            max_dead_age_ms=self._keep.age_ms,
            channels=len(channels),
            common=len(common),
        )
        return Call(_FINISH, keys, [*head, *channels, *words, *common])

    @staticmethod
    def finished(reply: Any) -> Finished:
        stored, *others = reply
        refused = tuple(row[1:].decode() for row in others if row.startswith(b"!"))
        dropped = tuple(row[1:].decode() for row in others if row.startswith(b"~"))
        return Finished(stored >= 0, tuple(others[len(refused) + len(dropped) :]), refused, dropped)

    def _keys_of_asked(self, model: str) -> tuple[str, ...]:
        keys = self.keys
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
        self, model: str, batch_id: str, pauses: Sequence[tuple[int, int]], *, last: bool, count_attempt: bool
    ) -> Call:
        keys = PutAsideKeys(
            lease=self.keys.lease(batch_id),
            leases=self.keys.leases(self._worker_id),
            delayed=self.keys.delayed(model),
        )
        head = PutAsideArgs(batch_id=batch_id, last=int(last), attempt=int(count_attempt))
        # Each is a row of `Pause`.
        return Call(_PUT_ASIDE, keys, (*head, *chain.from_iterable(pauses)))

    def give_back(self, model: str, batch_id: str, blame: Blame, losses: int = 1) -> Call:
        return give_back_call(self.keys, self._worker_id, model, batch_id, blame, losses)

    def waiting_keys(self, model: str) -> tuple[str, ...]:
        """The keys of all that waits for a model, as `look_call` and `peek_call` have them."""
        return (self.keys.delayed(model), *self.keys.queues(model))


def look_call(shards: Sequence[ShardCalls], model: str) -> Call:
    """A look at some shards of one server."""
    keys = [key for each in shards for key in each.waiting_keys(model)]
    return Call(_LOOK, keys, LookArgs(queues=len(TIERS)))


def peek_call(keys: Sequence[str], paused: Sequence[AbstractSet[int]]) -> Call:
    """A look at which models have something to claim. `keys` are `ShardCalls.waiting_keys` of each model, with its
    `paused` ranks.
    """
    return Call(_PEEK, keys, (*PeekArgs(queues=len(TIERS)), *map(_open, paused)))


def give_back_call(keys: Shard, worker_id: str, model: str, batch_id: str, blame: Blame, losses: int = 1) -> Call:
    """The return of a lease of `worker_id`, which need not be this process."""
    names = GiveBackKeys(lease=keys.lease(batch_id), leases=keys.leases(worker_id), bell=keys.bell(model))
    args = GiveBackArgs(batch_id=batch_id, blame=blame.value, losses=losses)
    return Call(_GIVE_BACK, (*names, *keys.queues(model)), args)


def _open(paused: AbstractSet[int]) -> str:
    return "".join("0" if rank in paused else "1" for rank in range(len(TIERS))) if paused else "1" * len(TIERS)

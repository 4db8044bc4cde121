"""`BatchStore` over several shards, for one worker: batches are filled from all of them.

    claim ──▶ `ShardedClaim`: the parts of a batch, each with its own lease ──▶ LeasedBatch
    finish, put_aside, give_back ──▶ each lease of the batch, all servers at the same time
         │ a shard does not answer
         ▼
    PlacesAway: what is left is a batch of its own, to be settled when it answers again

What waits in a shard is known from the last claim or look; a look asks all of them. The claim script keeps its promises
inside a shard; `batching.policy.sharding` says what holds between shards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from redis.exceptions import RedisError

from batching.claim.calls import ShardCalls
from batching.claim.leased_batch import LeasedBatch, LeasedPart, shifted
from batching.claim.model_shards import ModelShards
from batching.claim.place_lines import PlaceLines, is_away
from batching.claim.shard_knowledge import ShardKnowledge
from batching.claim.shard_waits import ShardWaits
from batching.claim.sharded_claim import ShardedClaim, Wanted
from batching.claim.store import BatchStore, RedisBatchStore
from batching.claim.values import DEFAULT_KEEP, Blame, Claim, Keep, PlacesAway, Settled, View
from batching.coalescing import Finished
from batching.policy.tiers import DEFAULT_AGEING_S, DEFAULT_SHARES
from config.redis import Call
from config.schema import MAX_BATCH_BYTES
from config.settings import Settings

logger = logging.getLogger(__name__)


class ShardedBatchStore:
    """One for all threads of a worker; each has its own connections."""

    def __init__(
        self,
        lines: PlaceLines,
        worker_id: str,
        shares: Sequence[float] = DEFAULT_SHARES,
        keep: Keep = DEFAULT_KEEP,
        ageing_s: float = DEFAULT_AGEING_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines = lines
        self._calls = [ShardCalls(place.keys, worker_id, shares, keep, ageing_s) for place in lines.places]
        self._shares = shares
        self._ageing_s = ageing_s
        self._clock = clock
        self._models: dict[str, ModelShards] = {}
        self._batches: dict[str, LeasedBatch] = {}
        # Leases that there may be: a shard, its model and the id.
        self._doubts: set[tuple[int, str, str]] = set()
        self._waits = ShardWaits(lines, self._calls)
        self._looked = threading.local()
        lines.on_back.append(self._resolve_doubts)

    def look(self, model: str, paused: AbstractSet[int] = frozenset()) -> View:
        of = self._model(model)
        seen = of.look()
        self._looked.model = model
        return of.knowledge.view(seen, paused)

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
        if when_rung_s:
            self.wait_for_bells((model,), when_rung_s)
        repeated = self._batches.get(batch_id)
        if least and repeated is None and not (view := self.look(model, paused)).has(least, calm_ms):
            return Claim(batch_id, (), view)
        of = self._model(model)
        batch = self._batches[batch_id] = repeated or LeasedBatch(model, batch_id)
        wanted = Wanted(size, max_attempts, paused, margin_ms, max_bytes)
        claim = ShardedClaim(batch, wanted, self._calls, of.knowledge, self._lines.ask, of, self._clock)
        if repeated is not None and batch.parts:
            entries = claim.repeat()
        else:
            self._look_first(of, size, paused)
            entries = claim.run(of.looks_along(), of.saw)
        if not batch.parts:
            del self._batches[batch_id]
        return Claim(batch_id, tuple(entries), of.knowledge.view(of.shards(), paused))

    def finish(self, batch_id: str, outcomes: Sequence[Settled], *, last: bool) -> Finished:
        batch = self._batches.get(batch_id)
        if batch is None:
            return Finished(False)
        calls: dict[int, Call] = {}
        sent: dict[int, Sequence[Settled]] = {}
        for part in batch.open_parts:
            mine = part.own(outcomes)
            # Without outcomes it asks whether the leases are there.
            if mine or last or not outcomes:
                sent[part.shard] = mine
                calls[part.shard] = self._calls[part.shard].finish(batch.lease_id, mine, last=last, first=part.first)

        if not calls:
            return Finished(self._is_settled(batch_id, batch, last=last))

        def read(part: LeasedPart, reply: Any) -> Finished:
            finished = shifted(ShardCalls.finished(reply), part.first)
            part.settled.update(each.position for each in sent[part.shard] if not last)
            return finished

        return self._settle(batch_id, batch, calls, read, last=last)

    def put_aside(
        self, model: str, batch_id: str, pauses: Sequence[tuple[int, int]], *, last: bool, count_attempt: bool = True
    ) -> bool:
        batch = self._batches.get(batch_id)
        if batch is None:
            return False
        calls: dict[int, Call] = {}
        sent: dict[int, list[int]] = {}
        for part in batch.open_parts:
            mine = [(position, pause_ms) for position, pause_ms in pauses if part.holds(position)]
            if mine or last:
                sent[part.shard] = [position for position, _ in mine]
                calls[part.shard] = self._calls[part.shard].put_aside(
                    model,
                    batch.lease_id,
                    [(position - part.first, pause_ms) for position, pause_ms in mine],
                    last=last,
                    count_attempt=count_attempt,
                )

        if not calls:
            return self._is_settled(batch_id, batch, last=last)

        def read(part: LeasedPart, reply: Any) -> Finished:
            part.settled.update(sent[part.shard])
            return Finished(reply >= 0)

        try:
            return bool(self._settle(batch_id, batch, calls, read, last=last))
        except PlacesAway as away:
            raise PlacesAway(bool(away.done), away.rests) from None

    def give_back(self, model: str, batch_id: str, blame: Blame, losses: int = 1) -> int:
        batch = self._batches.get(batch_id)
        if batch is None:
            return -1
        calls = {
            part.shard: self._calls[part.shard].give_back(model, batch.lease_id, blame, losses)
            for part in batch.open_parts
        }
        returned: list[int] = []

        def read(part: LeasedPart, reply: Any) -> Finished:
            returned.append(max(0, reply))
            return Finished(reply >= 0)

        try:
            return sum(returned) if self._settle(batch_id, batch, calls, read, last=True) else -1
        except PlacesAway as away:
            raise PlacesAway(sum(returned), away.rests) from None

    def wait_for_bells(self, models: Sequence[str], timeout_s: float) -> str | None:
        self._looked.model = None
        return self._waits.wait_for_bells(models, timeout_s)

    @property
    def is_told(self) -> bool:
        return self._waits.is_told

    def wait_for_changes(self, models: Sequence[str], timeout_s: float) -> str | None:
        return self._waits.wait_for_changes(models, timeout_s)

    def leave_bell(self) -> None:
        self._waits.leave()

    def ring(self, model: str) -> None:
        self._waits.ring(model)

    def peek(self, paused: Mapping[str, AbstractSet[int]]) -> AbstractSet[str]:
        return self._waits.peek(paused)

    def claimed_per_s(self, model: str) -> list[float]:
        """The requests per second that were claimed of each place lately."""
        return self._model(model).knowledge.rates(self._clock())

    def _model(self, name: str) -> ModelShards:
        of = self._models.get(name)
        if of is None:
            knowledge = ShardKnowledge(self._lines.group_of, self._ageing_s, self._shares)
            made = ModelShards(name, knowledge, self._calls, self._lines, self._doubt, self._clock)
            of = self._models.setdefault(name, made)
        return of

    def _look_first(self, of: ModelShards, size: int, paused: AbstractSet[int]) -> None:
        """Look, unless what is known fills the batch, or this thread has just looked."""
        has_looked, self._looked.model = getattr(self._looked, "model", None) == of.name, None
        if of.knowledge.waiting(of.shards(), paused) < (1 if has_looked else max(1, size)):
            of.look()

    def _settle(
        self,
        batch_id: str,
        batch: LeasedBatch,
        calls: Mapping[int, Call],
        read: Callable[[LeasedPart, Any], Finished],
        *,
        last: bool,
    ) -> Finished:
        """Make the calls for parts of a batch, and return what they say together.

        Raises:
            PlacesAway: some do not answer.
            RedisError: none does, or one refuses its call.
        """
        # Whoever settles a rest has nothing else to do.
        away = [] if batch.is_rest else [part for part in batch.open_parts if not self._lines.is_there(part.shard)]
        left_out = {part.shard for part in away}
        answers = self._lines.ask({number: [call] for number, call in calls.items() if number not in left_out})
        now: dict[int, Finished] = {}
        error = refusal = None
        for part in batch.open_parts:
            if part.shard not in answers:
                continue
            reply = answers[part.shard][0]
            if not isinstance(reply, RedisError):
                finished = now[part.shard] = read(part, reply)
                if last or not finished:
                    part.ended = finished
            elif is_away(reply):
                away.append(part)
                error = error or reply
            else:
                refusal = reply
        if refusal is not None:
            # What was done is remembered, and a repeat does not do it again.
            raise refusal
        if away:
            done = batch.finished(now) if now else Finished(True)
            self._put_off(batch_id, batch, away, done, error, last=last)
        done = batch.finished(now)
        if not batch.open_parts:
            self._batches.pop(batch_id, None)
        return done

    def _put_off(
        self,
        batch_id: str,
        batch: LeasedBatch,
        away: Sequence[LeasedPart],
        done: Finished,
        error: RedisError | None,
        *,
        last: bool,
    ) -> None:
        """Make batches of their own of the parts whose shards do not answer. Raises PlacesAway, or the error."""
        if error is not None and (batch.is_rest or not self._lines.any_there):
            raise error
        rests: dict[str, frozenset[int]] = {}
        for part in away:
            rest_id = f"{batch_id}@{self._lines.name([part.shard])}"
            self._batches[rest_id] = batch.split_off(part)
            rests[rest_id] = part.positions
        self._is_settled(batch_id, batch, last=last)
        raise PlacesAway(done, rests)

    def _is_settled(self, batch_id: str, batch: LeasedBatch, *, last: bool) -> bool:
        """True: whatever was to be settled is, or is in a rest. With `last` the batch is forgotten, if it has ended."""
        if last and not batch.open_parts:
            self._batches.pop(batch_id, None)
        return True

    def _doubt(self, number: int, model: str, batch_id: str) -> None:
        self._doubts.add((number, model, batch_id))
        # It may have come back in between.
        if self._lines.any_there and self._lines.is_there(number):
            self._resolve_doubts(number)

    def _resolve_doubts(self, number: int) -> None:
        """A shard is there again: what it may have leased and nobody heard of goes back to its queue."""
        # A copy, in one step: other threads add theirs.
        for doubt in [each for each in tuple(self._doubts) if each[0] == number]:
            _, model, batch_id = doubt
            call = self._calls[number].give_back(model, batch_id, Blame.NOTHING)
            (reply,) = self._lines.ask({number: [call]})[number]
            if is_away(reply):
                return
            self._doubts.discard(doubt)


def make_store(settings: Settings, lines: PlaceLines, worker_id: str) -> BatchStore:
    """The store of a worker, for as many places as there are."""
    keep, ageing_s = Keep(answer_bytes=settings.cache_max_bytes), settings.ageing_ms / 1000
    if len(lines.places) > 1:
        return ShardedBatchStore(lines, worker_id, keep=keep, ageing_s=ageing_s)
    (place,) = lines.places
    return RedisBatchStore(place.redis, worker_id, place.keys, keep=keep, ageing_s=ageing_s)


def claimed_per_s_of(store: BatchStore) -> Callable[[str], Sequence[float]]:
    """The function that returns what was claimed of each place, where there are several."""
    return store.claimed_per_s if isinstance(store, ShardedBatchStore) else lambda model: ()

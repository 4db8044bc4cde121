"""One claim over several shards: a batch of several leases, all under its id.

    plan ──▶ round: the claims of its parts, on all servers at the same time ──▶ entries ──room left?──▶ plan again
                │ a shard does not answer: in doubt         │ suspects beside others, or too many bytes
                ▼                                           ▼
    given back when it answers again              given back at once, uncounted

Each shard is asked at most once for a batch, so a repeat asks the same shards for the same numbers, and finds the
leases that there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol

from redis.exceptions import RedisError

from batching.claim.calls import ShardCalls
from batching.claim.lease import Entry, Verdict
from batching.claim.leased_batch import LeasedBatch, LeasedPart
from batching.claim.place_lines import is_away
from batching.claim.shard_knowledge import ShardKnowledge
from batching.claim.values import Blame
from config.redis import Call

Ask = Callable[[Mapping[int, Sequence[Call]]], dict[int, list[Any]]]
Saw = Callable[[Mapping[int, Sequence[Any]]], object]


def _unseen(_: Mapping[int, Sequence[Any]]) -> None:
    """Nothing was looked at."""


class There(Protocol):
    """Which shards can be asked."""

    def shards(self) -> Sequence[int]:
        """Those that can be; all, if none answers."""

    @property
    def any(self) -> bool:
        """True unless none answers."""

    def unheard(self, batch: LeasedBatch, part: LeasedPart, error: RedisError) -> None:
        """A shard did not answer, and may have leased this part."""


# Bound here, because access to an enum member costs a call.
_RUN = Verdict.RUN
# Rounds of a claim whose messages may be together in a batch as far as is known.
_ROUNDS = 2
# Of the bytes of a batch: when more are expected, shards are asked one after another.
_MANY_BYTES = 0.5


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of the claim, as `BatchStore.claim` has them."""

    size: int
    max_attempts: int
    paused: AbstractSet[int]
    margin_ms: int
    max_bytes: int


class ShardedClaim:
    """One claim. `run` returns the entries, and puts the leases into `batch`."""

    def __init__(
        self,
        batch: LeasedBatch,
        wanted: Wanted,
        calls: Sequence[ShardCalls],
        knowledge: ShardKnowledge,
        ask: Ask,
        there: There,
        clock: Callable[[], float],
    ) -> None:
        self._batch = batch
        self._wanted = wanted
        self._calls = calls
        self._knowledge = knowledge
        self._ask = ask
        self._there = there
        self._clock = clock
        self._entries: list[Entry] = []
        self._taken = self._bytes = self._places = 0
        self._asked: set[int] = set()
        self._unheard: list[tuple[LeasedPart, RedisError]] = []
        self._closed = self._heard = False

    def run(self, looks: Mapping[int, Sequence[Call]], saw: Saw) -> list[Entry]:
        """Claim as planned, and make the `looks` at other shards along the way; `saw` gets their replies.

        Raises:
            RedisError: none was heard. A repeat with the same batch finds what there is.
        """
        for round_ in itertools.count():
            parts, one_by_one = self._next_parts()
            if not parts or (round_ >= _ROUNDS and self._heard and not one_by_one):
                break
            self._round(parts, looks if round_ == 0 else {}, saw)
        return self._end()

    def repeat(self) -> list[Entry]:
        """Ask once more for what was asked before. Raises RedisError as `run` does."""
        shards = self._there.shards()
        parts, self._batch.parts = self._batch.open_parts, []
        self._unheard = [(part, RedisError("it is away")) for part in parts if part.shard not in shards]
        there = [part for part in parts if part.shard in shards]
        if not there:
            # Others may have something.
            self._asked.update(part.shard for part in parts)
            return self.run({}, _unseen)
        self._round(there, {}, _unseen)
        return self._end()

    def _end(self) -> list[Entry]:
        if (
            self._unheard
            and not self._heard
            and not (self._there.any and all(is_away(each) for _, each in self._unheard))
        ):
            self._batch.parts = [part for part, _ in self._unheard]
            raise self._unheard[-1][1]
        for part, error in self._unheard:
            self._there.unheard(self._batch, part, error)
        return self._entries

    def _next_parts(self) -> tuple[list[LeasedPart], bool]:
        """The parts of the next round, and whether shards are asked one after another."""
        left = self._wanted.size - self._taken
        others = [number for number in self._there.shards() if number not in self._asked]
        if left <= 0 or self._closed or not others:
            return [], False
        parts = self._knowledge.plan(others, left, self._wanted.paused, self._clock())
        if not parts:
            return [], False
        one_by_one = self._bytes + self._knowledge.bytes_of(parts) > _MANY_BYTES * self._wanted.max_bytes
        if one_by_one:
            if (
                self._entries
                and self._bytes + self._knowledge.bytes_of(parts[:1]) / parts[0].size > self._wanted.max_bytes
            ):
                return [], True
            parts = parts[:1]
        return [LeasedPart(part.shard, part.size, part.takes) for part in parts], one_by_one

    def _round(self, parts: Sequence[LeasedPart], looks: Mapping[int, Sequence[Call]], saw: Saw) -> None:
        claims = {part.shard: self._call(part) for part in parts}
        self._asked.update(claims)
        calls = {number: list(looks.get(number, ())) for number in (*looks, *claims)}
        for number, claim in claims.items():
            # Behind the looks, so that what it says of its shard is the news.
            calls[number].append(claim)
        answers = self._ask(calls)
        if looks:
            saw({number: answers[number][:1] for number in looks})
        now = self._clock()
        heard: list[tuple[LeasedPart, Any]] = []
        for part in parts:
            reply = answers[part.shard][-1]
            if isinstance(reply, RedisError):
                self._unheard.append((part, reply))
            else:
                heard.append((part, reply))
        self._heard = self._heard or bool(heard)
        too_many = [part for part, reply in heard if not self._took(part, reply, now)]
        if too_many:
            self._give_back(too_many)

    def _call(self, part: LeasedPart) -> Call:
        wanted = self._wanted
        return self._calls[part.shard].claim(
            self._batch.model,
            self._batch.lease_id,
            part.size,
            wanted.max_attempts,
            wanted.paused,
            margin_ms=wanted.margin_ms,
            max_bytes=max(1, wanted.max_bytes - self._bytes),
            takes=part.takes,
        )

    def _took(self, part: LeasedPart, reply: Any, now: float) -> bool:
        """Put the entries of one shard into the batch; returns False if they may not be in it."""
        entries, places, seen = self._calls[part.shard].claimed(reply, self._places)
        self._knowledge.saw(part.shard, seen, now)
        are_suspects = self._knowledge.took(part.shard, entries, now)
        part.first, part.count = self._places, places
        if not places:
            return True
        length = sum([len(entry.message) for entry in entries])
        if self._entries and (self._closed or are_suspects or self._bytes + length > self._wanted.max_bytes):
            self._knowledge.put_back(part.shard, entries)
            return False
        # Suspects are alone in their batch.
        self._closed = self._closed or are_suspects
        self._batch.parts.append(part)
        self._entries += entries
        self._places += places
        self._bytes += length
        self._taken += [entry.verdict for entry in entries].count(_RUN)
        return True

    def _give_back(self, parts: Sequence[LeasedPart]) -> None:
        batch = self._batch
        answers = self._ask(
            {
                part.shard: [self._calls[part.shard].give_back(batch.model, batch.lease_id, Blame.NOTHING)]
                for part in parts
            }
        )
        for part in parts:
            if isinstance(answers[part.shard][0], RedisError):
                self._unheard.append((part, answers[part.shard][0]))

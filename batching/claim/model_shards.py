"""One model in all shards: what is known of it, looks at what waits, and shards that refuse to be asked for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from batching.claim.calls import ShardCalls, look_call
from batching.claim.leased_batch import LeasedBatch, LeasedPart
from batching.claim.place_lines import PlaceLines, is_away
from batching.claim.shard_knowledge import ShardKnowledge
from config.redis import Call

logger = logging.getLogger(__name__)

# The time for which what was seen of a shard is good enough, while others fill the batches.
_SEEN_FOR_S = 0.02
# A shard that refuses the calls for a model, for what it has under one of its keys, is left out for so long.
_REFUSED_S = 1.0


class ModelShards:
    """For all threads of a worker, and `batching.claim.sharded_claim.There` for its claims.

    Args:
        on_doubt: called with a shard, the model and a batch that the shard may have leased, which nobody heard.
    """

    def __init__(
        self,
        name: str,
        knowledge: ShardKnowledge,
        calls: Sequence[ShardCalls],
        lines: PlaceLines,
        on_doubt: Callable[[int, str, str], None],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.knowledge = knowledge
        self._calls = calls
        self._lines = lines
        self._on_doubt = on_doubt
        self._clock = clock
        # Of each server: its shards lie together.
        self._look_at = [look_call([calls[number] for number in group], name) for group in lines.groups]
        self._refused: dict[int, float] = {}

    def shards(self) -> Sequence[int]:
        there = self._lines.asked()
        if not self._refused:
            return there
        now = self._clock()
        return [number for number in there if self._refused.get(number, now) <= now] or there

    @property
    def any(self) -> bool:
        return self._lines.any_there

    def unheard(self, batch: LeasedBatch, part: LeasedPart, error: RedisError) -> None:
        if is_away(error):
            self._on_doubt(part.shard, self.name, batch.lease_id)
        else:
            self._refuses(part.shard, error)

    def look(self) -> list[int]:
        """Look at all shards that answer; returns which do. Raises RedisError if none does."""
        answers = self._lines.ask(self._looks(self.shards()))
        seen = self.saw(answers)
        if not seen:
            raise next(reply for replies in answers.values() for reply in replies)
        return seen

    def looks_along(self) -> Mapping[int, Sequence[Call]]:
        """Looks at shards that were not seen for a while, although others fill the batches."""
        unseen = self.knowledge.unseen_for(_SEEN_FOR_S, self._clock())
        return self._looks([number for number in unseen if self._lines.is_there(number)]) if unseen else {}

    def saw(self, answers: Mapping[int, Sequence[Any]]) -> list[int]:
        """Learn from the replies to looks; returns the shards that were seen."""
        now = self._clock()
        seen: list[int] = []
        for first, (reply,) in answers.items():
            group = self._lines.groups[self._lines.group_of[first]]
            if not isinstance(reply, RedisError):
                for number, each in zip(group, ShardCalls.seen(reply), strict=True):
                    self.knowledge.saw(number, each, now)
                seen += group
            elif not is_away(reply):
                seen += self._look_one_by_one(group)
        return seen

    def _looks(self, shards: Sequence[int]) -> dict[int, list[Call]]:
        """Looks at these shards, and at all others of their servers: they cost next to nothing more."""
        groups = {self._lines.group_of[number] for number in shards}
        return {self._lines.groups[group][0]: [self._look_at[group]] for group in groups}

    def _look_one_by_one(self, group: Sequence[int]) -> list[int]:
        """One of the shards refuses to be looked at, and the others need not."""
        seen: list[int] = []
        answers = self._lines.ask({number: [self._calls[number].look(self.name)] for number in group})
        for number, (reply,) in answers.items():
            if isinstance(reply, RedisError):
                self._refuses(number, reply)
            else:
                self.knowledge.saw(number, ShardCalls.seen(reply)[0], self._clock())
                seen.append(number)
        return seen

    def _refuses(self, number: int, error: RedisError) -> None:
        if is_away(error):
            return
        if number not in self._refused:
            logger.error("shard %s refuses to be asked for %s: %s", self._lines.name([number]), self.name, error)
        self._refused[number] = self._clock() + _REFUSED_S

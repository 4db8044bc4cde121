"""Reads what waits: the tier queues, summed over all places of requests, and which places there are to sum.

A place that does not answer is left out of the sums, and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from batching.script_args import LOOK, LookKeys
from config.redis import Script
from config.shards import Place, Places
from config.tiers import TIERS
from tasks.fleet.all_places import PATIENCE_S, AllPlaces, Answer, answered
from tasks.fleet.registry_reader import Fleet, QueueRow, WorkerRow

_RATE_OVER_S = 5
_LOOK = Script(LOOK.text)


class ShardRow(msgspec.Struct, frozen=True):
    """One shard of several, or the home. `error` is empty if it answers; `workers` are those that beat in it, `depth`
    what waits.
    """

    name: str
    error: str = ""
    workers: int = 0
    depth: int = 0


class Waiting(msgspec.Struct, frozen=True):
    """The queues of some models, and where there are several shards, a row for each place that was asked."""

    queues: list[QueueRow] = []
    shards: tuple[ShardRow, ...] = ()

    @property
    def down(self) -> dict[str, str]:
        """The places that are not in the sums, each with its error."""
        return {each.name: each.error for each in self.shards if each.error}


class QueueReader:
    """Each call takes two round trips to every server: meant for pages and commands, not for requests."""

    def __init__(self, places: Places, fleet: Fleet) -> None:
        self._places = places
        self._fleet = fleet
        self._all = AllPlaces(places, (LOOK.text,))

    def queues(self, models: Iterable[str]) -> list[QueueRow]:
        """`Waiting.queues` alone. Raises RedisError."""
        return self.read(models).queues

    def read(
        self, models: Iterable[str], workers: Sequence[WorkerRow] | None = None, within_s: float = PATIENCE_S
    ) -> Waiting:
        """Depth, oldest age and arrival rate (over the last five seconds) of every tier queue of `models`. Raises
        RedisError if no place answers.

        Args:
            workers: what `Fleet.workers` has read, if it has.
        """
        models = tuple(models)
        in_memory = self._in_memory(workers)
        if in_memory:
            found = (in_memory.get((model, tier.value)) for model in models for tier in TIERS)
            return Waiting([row for row in found if row is not None])
        asked = self._all.ask(lambda pipeline, place: self._note(pipeline, place, models), within_s)
        good = answered(asked)
        rates = self._rates({each.place: each.replies for each in good}, models, within_s)
        sums = {(model, tier.value): QueueRow(model, tier.value, 0, 0) for model in models for tier in TIERS}
        for each in good:
            for row in _rows(models, each, rates):
                sums[row.model, row.tier] = _added(sums[row.model, row.tier], row)
        return Waiting(list(sums.values()), self._shards(models, asked) if self._places.are_many else ())

    def _in_memory(self, workers: Sequence[WorkerRow] | None) -> dict[tuple[str, str], QueueRow]:
        """The queues of a process in collocated mode, which has one shard."""
        if self._places.are_many:
            return {}
        alive = self._fleet.alive_of(self._fleet.workers() if workers is None else workers)
        return {(row.model, row.tier): row for each in alive for row in each.queues}

    def _note(self, pipeline: Any, place: Place, models: Sequence[str]) -> None:
        for model in models:
            keys = (*LookKeys(delayed=place.keys.delayed(model)), *place.keys.queues(model))
            pipeline.evalsha(_LOOK.sha, len(keys), *keys)
        if self._places.are_many:
            pipeline.time()
            pipeline.zrange(place.keys.workers(), 0, -1, withscores=True)

    def _rates(self, seen: dict[Place, Sequence[Any]], models: Sequence[str], within_s: float) -> dict[str, float]:
        """Requests queued per second, per queue, over the last whole seconds of each server's clock."""
        if not models:
            return {}

        def note(pipeline: Any, place: Place) -> None:
            if place in seen:
                second = int(seen[place][0][0]) // 1000
                for ago in range(1, _RATE_OVER_S + 1):
                    pipeline.hgetall(place.keys.arrivals(second - ago))

        rates: dict[str, float] = {}
        for each in self._all.ask(note, within_s):
            for counts in each.replies if each.error is None else ():
                for queue, count in counts.items():
                    rates[queue.decode()] = rates.get(queue.decode(), 0.0) + int(count) / _RATE_OVER_S
        return rates

    def _shards(self, models: Sequence[str], asked: Iterable[Answer]) -> tuple[ShardRow, ...]:
        return tuple(self._shard(models, each) for each in asked)

    def _shard(self, models: Sequence[str], answer: Answer) -> ShardRow:
        if answer.error is not None:
            return ShardRow(answer.place.name, " ".join(str(answer.error).split()))
        (seconds, micros), beats = answer.replies[len(models) :]
        now_ms = seconds * 1000 + micros / 1000
        depth = sum(row.depth for row in _rows(models, answer, {}))
        return ShardRow(answer.place.name, "", sum(self._fleet.is_fresh(now_ms - at) for _, at in beats), depth)


def _rows(models: Sequence[str], answer: Answer, rates: dict[str, float]) -> Iterable[QueueRow]:
    keys = answer.place.keys
    for model, (now_ms, depths, oldest, _) in zip(models, answer.replies, strict=False):
        for tier, depth, at in zip(TIERS, depths, oldest, strict=True):
            age_ms = max(0, int(now_ms - at)) if at else 0
            yield QueueRow(model, tier.value, depth, age_ms, rates.get(keys.queue(model, tier), 0.0))


def _added(one: QueueRow, other: QueueRow) -> QueueRow:
    return QueueRow(
        one.model,
        one.tier,
        one.depth + other.depth,
        max(one.oldest_ms, other.oldest_ms),
        one.arrival_rps + other.arrival_rps,
    )

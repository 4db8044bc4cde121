"""The last hour in Redis: a point every five seconds, written by the first frontend that finds one due.

A point holds *sums* where Prometheus has counters: the difference between any two points is what happened in between,
and the newest point equals `/metrics`. It holds values where Prometheus has gauges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from config.shards import Places
from tasks.fleet.dead_letters import DeadLetters
from tasks.fleet.queue_reader import QueueReader
from tasks.fleet.registry_reader import Fleet, QueueRow, WorkerRow
from tasks.observability import metrics, slo

STEP_S = 5
KEPT = 3600 // STEP_S
_LIFETIME_S = 2 * 3600


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One moment. Buckets are cumulative, as in Prometheus, and the last one has no bound.

    requests: tier → code → sum · served: model → code → sum · took: model → seconds of all its requests
    slo: tier → (counted, missed) · latency: tier → buckets of `metrics.SECONDS`
    sizes: model → buckets of `metrics.SIZES` · size_sums: model → requests in batches · reasons: model → reason → sum
    queues: model → tier → (depth, age of the oldest in ms) · busy: model → (executors that are ready, their mean busy
    fraction) · workers: state → number · dead: dead letters kept
    """

    at: int
    requests: dict[str, dict[str, int]] = {}
    served: dict[str, dict[str, int]] = {}
    took: dict[str, float] = {}
    slo: dict[str, tuple[int, int]] = {}
    latency: dict[str, tuple[int, ...]] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    size_sums: dict[str, int] = {}
    reasons: dict[str, dict[str, int]] = {}
    queues: dict[str, dict[str, tuple[int, int]]] = {}
    busy: dict[str, tuple[int, float]] = {}
    workers: dict[str, int] = {}
    dead: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Point).decode


class History:
    """Takes and stores points. `models` are those whose queues are read."""

    def __init__(
        self, places: Places, fleet: Fleet, waiting: QueueReader, shared: metrics.SharedMetrics, models: Sequence[str]
    ) -> None:
        self._redis = places.home.redis
        self._keys = places.home.keys
        self._fleet = fleet
        self._waiting = waiting
        self._letters = DeadLetters(places)
        self._shared = shared
        self._models = models

    def take_if_due(self) -> bool:
        """Store a point unless another process has since the last step; returns whether it did. Raises RedisError."""
        at = self._redis.time()[0]
        turn = self._keys.history_turn(at // STEP_S)
        if not self._redis.set(turn, 1, nx=True, ex=2 * STEP_S):
            return False
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.rpush(self._keys.history(), _encode(self.now()))
        pipeline.ltrim(self._keys.history(), -KEPT, -1)
        pipeline.expire(self._keys.history(), _LIFETIME_S)
        pipeline.execute()
        return True

    def now(self, workers: Sequence[WorkerRow] | None = None, queues: Sequence[QueueRow] | None = None) -> Point:
        """A point of this moment, from `workers` and `queues` if they are given. Raises RedisError."""
        workers = self._fleet.workers() if workers is None else workers
        queues = self._waiting.read(self._models, workers).queues if queues is None else queues
        at = self._redis.time()[0]
        dead = self._dead()
        return make_point(at, self._shared.samples(), queues, workers, self._fleet.healthy_of(workers), dead)

    def _dead(self) -> int:
        dead, is_whole = self._letters.count()
        if is_whole:
            return dead
        # Otherwise the letters of a shard would seem to be new when it is back.
        last = self.ago(0)
        return max(dead, last.dead) if last else dead

    def points(self) -> list[Point]:
        """All points, oldest first. Raises RedisError."""
        return [_decode(raw) for raw in cast("list[bytes]", self._redis.lrange(self._keys.history(), 0, -1))]

    def ago(self, seconds: int) -> Point | None:
        """The point from `seconds` ago; the oldest one if none is that old. Raises RedisError."""
        length = self._redis.llen(self._keys.history())
        if not length:
            return None
        place = max(-length, -max(1, seconds // STEP_S))
        raw = cast("bytes | None", self._redis.lindex(self._keys.history(), place))
        return _decode(raw) if raw else None


def make_point(
    at: int,
    samples: metrics.Samples,
    queues: Sequence[QueueRow],
    workers: Sequence[WorkerRow],
    healthy: Sequence[WorkerRow],
    dead: int,
) -> Point:
    requests: dict[str, dict[str, int]] = {}
    served: dict[str, dict[str, int]] = {}
    for labels, value in samples.get("bunch_requests_total", ()):
        for codes in (requests.setdefault(labels["tier"], {}), served.setdefault(labels["model"], {})):
            codes[labels["code"]] = codes.get(labels["code"], 0) + round(value)
    took: dict[str, float] = {}
    for labels, value in samples.get("bunch_request_seconds_sum", ()):
        took[labels["model"]] = took.get(labels["model"], 0.0) + value
    reasons: dict[str, dict[str, int]] = {}
    for labels, value in samples.get("bunch_batches_total", ()):
        reasons.setdefault(labels["model"], {})[labels["reason"]] = round(value)
    depths: dict[str, dict[str, tuple[int, int]]] = {}
    for row in queues:
        depths.setdefault(row.model, {})[row.tier] = (row.depth, row.oldest_ms)
    counted = slo.counted(samples.get("bunch_requests_total", ()))
    missed = {labels["tier"]: value for labels, value in samples.get("bunch_slo_missed_total", ())}
    return Point(
        at=at,
        requests=requests,
        served=served,
        took={model: round(seconds, 2) for model, seconds in took.items()},
        slo={tier: (round(number), round(missed.get(tier, 0.0))) for tier, number in counted.items()},
        latency=_buckets(samples, "bunch_request_seconds", metrics.SECONDS, "tier"),
        sizes=_buckets(samples, "bunch_batch_size", metrics.SIZES, "model"),
        size_sums={labels["model"]: round(value) for labels, value in samples.get("bunch_batch_size_sum", ())},
        reasons=reasons,
        queues=depths,
        busy=_busy(healthy),
        workers={"healthy": len(healthy), "unhealthy": len(workers) - len(healthy)},
        dead=dead,
    )


def slo_change(then: Point, now: Point, tier: str) -> tuple[int, int]:
    """The increase of (counted, missed) between two points; after a reset of the sums, their values since."""
    before, after = then.slo.get(tier, (0, 0)), now.slo.get(tier, (0, 0))
    return after if after[0] < before[0] else (after[0] - before[0], max(0, after[1] - before[1]))


def _busy(healthy: Sequence[WorkerRow]) -> dict[str, tuple[int, float]]:
    fractions: dict[str, list[float]] = {}
    for worker in healthy:
        for each in worker.models:
            if each.state == "ready":
                fractions.setdefault(each.model, []).append(each.busy)
    return {model: (len(each), round(sum(each) / len(each), 4)) for model, each in fractions.items()}


def _buckets(samples: metrics.Samples, name: str, bounds: Sequence[float], by: str) -> dict[str, tuple[int, ...]]:
    """Cumulative counts per value of the label `by`, summed over the other labels."""
    places = {float(bound): n for n, bound in enumerate((*bounds, float("inf")))}
    sums: dict[str, list[float]] = {}
    for labels, value in samples.get(f"{name}_bucket", ()):
        place = places.get(float(labels["le"]))
        # A bound of another version of Bunch, whose sums are in the same Redis.
        if place is not None:
            sums.setdefault(labels[by], [0.0] * len(places))[place] += value
    return {key: tuple(round(each) for each in row) for key, row in sums.items()}

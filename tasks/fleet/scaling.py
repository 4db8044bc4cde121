"""The autoscaler's decision, for whatever can carry it out: `up`, KEDA, a HorizontalPodAutoscaler.

manage.py autoscale ──▶ bunch:scale ──▶ GET /metrics (bunch_workers_wanted), GET /internal/scale
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from redis import Redis

from config.keys import Shard

# A decision expires when it is not renewed, so that its readers fall back to their own rules.
KEPT_S = 60


class ScaleRow(msgspec.Struct, frozen=True):
    """One decision and the signals behind it. `drain_s` is None when nothing is served and requests wait.

    `pool` is the pool, or the models of workers that serve only some, comma-separated; empty where all workers serve
    all `models`. Where there are several such groups, `groups` has a row for each, and this row is their sum.
    """

    wanted: int
    ready: int
    starting: int
    depth: int
    use: float
    drain_s: float | None
    reason: str = ""
    pool: str = ""
    models: tuple[str, ...] = ()
    groups: tuple[ScaleRow, ...] = ()

    def of(self, *, pool: str | None = None, model: str | None = None) -> ScaleRow | None:
        """The row of a pool, or the sum of the groups that serve a model; None: there is no such group."""
        rows = [
            each
            for each in self.groups or (self,)
            if pool in {None, each.pool} and (model is None or model in each.models)
        ]
        return summed(rows) if rows else None


def summed(rows: Sequence[ScaleRow]) -> ScaleRow:
    """One row for several groups; the slowest to drain and the busiest count. A single row stays as it is."""
    if len(rows) == 1:
        return rows[0]
    drains = [each.drain_s for each in rows]
    return ScaleRow(
        sum(each.wanted for each in rows),
        sum(each.ready for each in rows),
        sum(each.starting for each in rows),
        sum(each.depth for each in rows),
        max((each.use for each in rows), default=0.0),
        None if None in drains else max((each for each in drains if each is not None), default=0.0),
        "; ".join(f"{each.pool}: {each.reason}" for each in rows if each.reason),
        models=tuple(dict.fromkeys(name for each in rows for name in each.models)),
        groups=tuple(rows),
    )


class ScaleBoard:
    """Stores and reads the last decision."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._redis = redis
        self._key = (shard or Shard()).scale()

    def write(self, row: ScaleRow) -> None:
        self._redis.set(self._key, msgspec.json.encode(row), ex=KEPT_S)

    def read(self) -> ScaleRow | None:
        """The last decision; None while no autoscaler runs."""
        raw = cast("bytes | None", self._redis.get(self._key))
        return None if raw is None else msgspec.json.decode(raw, type=ScaleRow)

"""The autoscaler's decision, for whatever can carry it out: `up`, KEDA, a HorizontalPodAutoscaler.

manage.py autoscale ──▶ bunch:scale ──▶ GET /metrics (bunch_workers_wanted), GET /internal/scale
"""

from __future__ import annotations

from typing import cast

import msgspec
from redis import Redis

from config.keys import Shard

# A decision expires when it is not renewed, so that its readers fall back to their own rules.
KEPT_S = 60


class ScaleRow(msgspec.Struct, frozen=True):
    """One decision and the signals behind it. `drain_s` is None when nothing is served and requests wait."""

    wanted: int
    ready: int
    starting: int
    depth: int
    use: float
    drain_s: float | None
    reason: str = ""


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

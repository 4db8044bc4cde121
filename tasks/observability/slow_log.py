"""Requests slower than their tier's objective: the slowest of each second, the newest hundred of these."""

from __future__ import annotations

import heapq
from typing import cast

import msgspec
from redis import Redis

from config.keys import Shard

KEPT = 100
_A_SECOND = 5
_LIFETIME_S = 24 * 3600


class SlowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One slow request. If an executor answered it, `queue_ms` is the time from admission to claim and `compute_ms`
    that of its batch; the rest is HTTP, Redis and the transport between them.
    """

    at: float
    request_id: str
    task_id: str
    model: str
    tier: str
    code: str
    total_ms: float
    queue_ms: float | None = None
    compute_ms: float | None = None
    batch_size: int | None = None
    batch_id: str = ""
    attempt: int = 1


class _Metadata(msgspec.Struct):
    queue_ms: float | None = None
    compute_ms: float | None = None
    batch_size: int | None = None
    batch_id: str = ""
    attempt: int = 1


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SlowRequest).decode
_decode_metadata = msgspec.json.Decoder(_Metadata).decode


def with_metadata(request: SlowRequest, metadata: bytes) -> SlowRequest:
    """Add the stages from `metadata`, the JSON object that travels with a reply."""
    try:
        known = msgspec.structs.asdict(_decode_metadata(metadata))
    except msgspec.MsgspecError:
        return request
    return msgspec.structs.replace(request, **known)


class SlowLog:
    """The slow log of one frontend process: `note` during a request, `flush` once a second."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._redis = redis
        self._keys = shard or Shard()
        self._noted: list[tuple[float, int, SlowRequest]] = []
        self._count = 0

    def note(self, request: SlowRequest) -> None:
        """Keep a request if it is among the slowest since the last flush; when everything is slow, a few are enough."""
        self._count += 1
        item = (request.total_ms, self._count, request)
        if len(self._noted) < _A_SECOND:
            heapq.heappush(self._noted, item)
        else:
            heapq.heappushpop(self._noted, item)

    def flush(self) -> None:
        """Write the kept requests. Raises RedisError; then they are dropped."""
        noted, self._noted = self._noted, []
        newest = sorted((each for *_, each in noted), key=lambda each: each.at)
        if not newest:
            return
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.lpush(self._keys.slow(), *map(_encode, newest))
        pipeline.ltrim(self._keys.slow(), 0, KEPT - 1)
        pipeline.expire(self._keys.slow(), _LIFETIME_S)
        pipeline.execute()

    def newest(self, limit: int = KEPT) -> list[SlowRequest]:
        """The slow requests of all processes, newest first. Raises RedisError."""
        return [_decode(raw) for raw in cast("list[bytes]", self._redis.lrange(self._keys.slow(), 0, limit - 1))]

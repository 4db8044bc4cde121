"""Heartbeats of workers, and the return of leases of dead workers.

Every worker beats once a second, in Redis time. A lease has no expiry of its own: it lives as long as its worker. When
a worker has been silent for the lease TTL, the next worker that beats gives its leases back, each in one atomic call.
So two workers that notice at once do no harm, and when one dies half-way another continues. A supervisor that sees a
process die need not wait for the TTL.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

import msgspec
from redis import Redis

from batching.claim.lease import Lease, parse_lease
from batching.claim.store import Blame, give_back
from batching.policy import Throughput
from batching.script_args import BEAT, FORGET_WORKER, BeatArgs, BeatKeys, ForgetWorkerArgs, ForgetWorkerKeys
from config.keys import Shard
from config.redis import Call, Line, Script

logger = logging.getLogger(__name__)


OnGone = Callable[[str], None]
# Called for each lease of a dead worker before it is given back, with the worker and the batch.
OnLost = Callable[[str, str, Lease], None]


def make_worker_id(pid: int) -> str:
    """A new id for each life of a process: after a restart it must not own the leases of the life before."""
    return _name_of(pid) + secrets.token_hex(4)


def _name_of(pid: int) -> str:
    return f"{socket.gethostname()}-{pid}-"


class _Named(msgspec.Struct):
    node: str = ""


def name_of(redis: Redis, keys: Shard, worker_id: str) -> str:
    """The worker's node name, as Celery and Flower show it; its id when it has not registered one. Raises
    RedisError.
    """
    raw = cast("bytes | None", redis.get(keys.worker(worker_id)))
    return (msgspec.json.decode(raw, type=_Named).node if raw else "") or worker_id


@dataclass(frozen=True, slots=True)
class ModelThroughput:
    """The throughput of a worker for one model: ready executors, requests per second of each, seconds per batch.

    A `rate` of 0 means that it is not known yet.
    """

    executors: int
    rate: float = 0.0
    first_s: float = 0.0
    full_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.executors};{self.rate:.4f};{self.first_s * 1000:.4f};{self.full_s * 1000:.4f}"


def read_pace(row: bytes) -> tuple[int, int]:
    """When a worker wrote a row of a model's pace, in ms of that Redis' time, and how many executors it has ready."""
    at_ms, executors, *_ = row.split(b";")
    return int(at_ms), int(executors)


def model_pace(executors: int, paces: Sequence[Throughput], max_batch_size: int) -> ModelThroughput:
    """The throughput of the `executors` that are ready, from the measurements of all executors of the worker."""
    known = [each for each in paces if each.known]
    if not known:
        return ModelThroughput(executors)
    return ModelThroughput(
        executors,
        fmean(each.rate(max_batch_size) for each in known),
        fmean(each.seconds(1) for each in known),
        fmean(each.seconds(max_batch_size) for each in known),
    )


def speed(pace: Throughput, size: int) -> tuple[float | None, float | None]:
    """Milliseconds of a batch of one, and requests per second in batches of `size`; None while they are not known."""
    return (round(pace.seconds(1) * 1000, 1), round(pace.rate(size), 1)) if pace.known else (None, None)


_BEAT = Script(BEAT.text)


class WorkerRegistry:
    """The register of one shard, as one worker uses it from one thread.

    Args:
        home: the client of the Redis that has the reports of workers, if it is another shard.
    """

    def __init__(
        self,
        redis: Redis,
        lease_ttl_s: float,
        shard: Shard | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_lost: OnLost | None = None,
        on_gone: OnGone | None = None,
        home: Redis | None = None,
    ) -> None:
        self._redis = redis
        self._home = home
        self._on_lost = on_lost
        self._on_gone = on_gone
        self._ttl_ms = int(lease_ttl_s * 1000)
        self._keys = shard or Shard()
        self._clock = clock
        self._trusts_itself_at = 0.0
        self._line = Line(redis)
        self._forget = redis.register_script(FORGET_WORKER.text)

    def beat(self, worker_id: str, about: bytes, paces: Mapping[str, ModelThroughput] | None = None) -> list[str]:
        """Register a heartbeat with the worker's report (JSON) and its throughput. Returns workers silent for the lease
        TTL.

        After a silence of its own (Redis was away, the machine slept) it returns nobody for one lease TTL: other
        workers that were cut off need that time to beat again.
        """
        return self.heard(self._line.again(self.beat_call(worker_id, about, paces or {})))

    def beat_call(self, worker_id: str, about: bytes, paces: Mapping[str, ModelThroughput]) -> Call:
        """The call of `beat`; `heard` reads its reply. Without `about` the report stays as it is."""
        names = BeatKeys(workers=self._keys.workers(), about=self._keys.worker(worker_id))
        args = BeatArgs(worker_id=worker_id, about=about, lease_ttl_ms=self._ttl_ms)
        return Call(_BEAT, (*names, *map(self._keys.pace, paces)), (*args, *map(str, paces.values())))

    def heard(self, reply: Any) -> list[str]:
        own_silence_ms, overdue = reply
        now = self._clock()
        if own_silence_ms >= self._ttl_ms:
            self._trusts_itself_at = now + self._ttl_ms / 1000
        if now < self._trusts_itself_at:
            return []
        return [each.decode() for each in cast("list[bytes]", overdue)]

    def is_elsewhere(self, worker_id: str, model: str) -> bool:
        """Return whether another worker has beaten lately with an executor ready for the model. Raises RedisError."""
        rows = cast("dict[bytes, bytes]", self._redis.hgetall(self._keys.pace(model)))
        beats = {name.decode(): row.split(b";") for name, row in rows.items()}
        now_ms = int(beats[worker_id][0]) if worker_id in beats else 0
        others = (row for name, row in beats.items() if name != worker_id)
        return any(int(row[1]) and now_ms - int(row[0]) < self._ttl_ms for row in others)

    def wanted(self, models: Sequence[str]) -> list[str]:
        """Those of the models that a frontend has asked to load, each for one worker that asks. Raises RedisError."""
        keys = {self._keys.wanted(name): name for name in models}
        if not keys or not self._redis.exists(*keys):
            return []
        return [name for key, name in keys.items() if self._redis.delete(key)]

    def bury(self, pid: int) -> int:
        """Give back all leases of a dead process of this host; returns the number of requests."""
        members = cast("list[bytes]", self._redis.zrange(self._keys.workers(), 0, -1))
        names = [each.decode() for each in members]
        return sum(self.reclaim(each, silent_ms=0) for each in names if each.startswith(_name_of(pid)))

    def reclaim(self, worker_id: str, silent_ms: int | None = None) -> int:
        """Give back all leases of a dead worker, attempts counted, and deregister it; returns the number of requests.

        It stays registered if it has beaten within `silent_ms` (default: the lease TTL); 0 deregisters it in any case.
        """
        returned = 0
        name = name_of(self._home or self._redis, Shard() if self._home else self._keys, worker_id)
        for raw in cast("set[bytes]", self._redis.smembers(self._keys.leases(worker_id))):
            batch_id = raw.decode()
            lease = parse_lease(cast("list[bytes]", self._redis.lrange(self._keys.lease(batch_id), 0, -1)))
            if lease is None:
                self._redis.srem(self._keys.leases(worker_id), batch_id)
                continue
            if self._on_lost is not None:
                self._on_lost(name, batch_id, lease)
            returned += max(0, give_back(self._line, self._keys, worker_id, lease.model, batch_id, Blame.ATTEMPT))
        struck = self.deregister(worker_id, self._ttl_ms if silent_ms is None else silent_ms)
        # Each shard tells of what it had; that the worker is gone is told once.
        if returned or (struck and self._home is None):
            logger.warning("worker %s is gone; its %d requests were queued again", name, returned)
        if struck and self._on_gone is not None:
            self._on_gone(worker_id)
        return returned

    def deregister(self, worker_id: str, silent_ms: int = 0) -> bool:
        """Remove a worker that holds no lease; with `silent_ms`, only if it has been silent for that long.

        Returns whether this call has removed it.
        """
        struck = self._forget(
            keys=ForgetWorkerKeys(
                workers=self._keys.workers(), leases=self._keys.leases(worker_id), about=self._keys.worker(worker_id)
            ),
            args=ForgetWorkerArgs(worker_id=worker_id, silent_ms=silent_ms),
        )
        return bool(struck)

"""The submit script as a frontend's outbox calls it, without the frontend."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import cast

from redis import Redis

from batching.claim.registry import ModelThroughput, WorkerRegistry
from config.keys import Shard
from config.settings import ModelSettings, Settings
from config.tiers import Tier
from tasks.client.admission_args import AdmissionArgs
from tasks.client.admission_codes import refusals
from tasks.client.flush import Posted
from tasks.client.outbox import Outbox
from tasks.client.pending import Pending
from tasks.client.submission import Submission
from tasks.errors import Refused
from tasks.protocol.caller import ANYBODY
from tasks.protocol.outgoing import MessageWriter, Outgoing
from tasks.protocol.quota import Quota

KEYS = Shard()
MODEL = "m"
_numbers = itertools.count()
_AHEAD_MS = 1700


def settings_for(**values: object) -> Settings:
    depth = cast("int", values.pop("max_queue_depth", 20_000))
    model = ModelSettings(name=MODEL, source="tests:Nothing", max_queue_depth=depth, cache=False)
    return Settings(models={MODEL: model}, default_model=MODEL, **values)  # type: ignore[arg-type]


class Door:
    """The door of one frontend, whose own clock may be wrong by `skew_s`."""

    def __init__(self, redis: Redis, name: str = "door", skew_s: float = 0.0, **settings: object) -> None:
        self.redis = redis
        self.name = name
        self._skew_s = skew_s
        self._settings = settings_for(**settings)
        self._rules = AdmissionArgs(self._settings, KEYS)
        self._outbox = Outbox(redis, name, self._rules, lambda pending, value: None, KEYS)
        self._writer = MessageWriter(f"bunch:reply:{name}")

    def close(self) -> None:
        self._outbox.stop()

    def send(
        self, tier: Tier = Tier.PAID, count: int = 1, *, quota: Quota | None = None, timeout_ms: int = 10_000
    ) -> list[Refused | None]:
        """Send one flush of `count` requests; for each None, or the reason of its refusal."""
        return self.flush([self.request(tier, quota, timeout_ms) for _ in range(count)])

    def request(self, tier: Tier, quota: Quota | None = None, timeout_ms: int = 10_000) -> Outgoing:
        task_id = f"{self.name}-{next(_numbers)}"
        limit_ms = min(timeout_ms, self._settings.queue_timeout_of(tier))
        submission = Submission(MODEL, ANYBODY[tier], b"1", timeout_ms / 1000)
        queue = KEYS.queue(MODEL, tier)
        return Outgoing(task_id, submission, queue, timeout_ms, limit_ms, 60_000, tracked=False, quota=quota)

    def flush(self, batch: Sequence[Outgoing]) -> list[Refused | None]:
        now = time.time() + self._skew_s
        nobody = cast("Pending", None)
        posted = [Posted(out, self._writer.rest(out, now), nobody, receipt=False) for out in batch]
        self._outbox.flushes += 1
        return cast("list[Refused | None]", list(refusals(self._outbox._flush(posted, self._rules), list(batch))))

    def depths(self) -> list[int]:
        return [self.redis.llen(queue) for queue in KEYS.queues(MODEL)]

    def held(self, tier: Tier) -> dict[str, int]:
        stored = cast("dict[bytes, bytes]", self.redis.hgetall(KEYS.held(KEYS.queue(MODEL, tier))))
        return {tag.decode(): int(count) for tag, count in stored.items()}


def reasons(answers: Iterable[Refused | None]) -> list[str]:
    return [answer.reason if answer else "" for answer in answers]


def beat(redis: Redis, pace: ModelThroughput, worker: str = "w1") -> None:
    """Register a worker with that throughput, visible at once.

    Its beat is as far ahead as one may be (`FRESH_MS` of capacity.lua): so it counts for twice as long, also on a
    machine that stands still meanwhile.
    """
    WorkerRegistry(redis, 5.0).beat(worker, b"{}", {MODEL: pace})
    seconds, micros = redis.time()
    redis.hset(KEYS.pace(MODEL), worker, f"{seconds * 1000 + micros // 1000 + _AHEAD_MS};{pace}")
    redis.delete(KEYS.capacity(MODEL))

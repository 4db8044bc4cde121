"""Admission of one process's requests, by the same rules as `submit.lua`: quotas, memory, depth, pressure, time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from batching.claim.registry import ModelThroughput
from batching.memory.queues import ModelQueues
from batching.memory.store import MemoryStore
from batching.memory.timed import Timed
from batching.policy import Admission, Form, Gcra, Pressure, Shed
from config.settings import Settings
from config.tiers import TIERS
from tasks.client.admission_codes import Status
from tasks.protocol.outgoing import Outgoing
from tasks.protocol.quota import Quota

Capacity = Callable[[str], ModelThroughput]

# The fleet's figures are measured at most four times a second, as in `tasks/lua/capacity.lua`.
_MEASURED_EVERY_MS = 250
# In how many whole seconds arrivals must continue to count as steady.
_STEADY_S = 3
# After how long to try again when the memory is full.
_MEMORY_MS = 1000


class Verdict(NamedTuple):
    """A refusal: its status, after how many ms to retry, and what is left of the quota (requests, ms until whole)."""

    status: Status
    retry_ms: float
    remaining: int = 0
    whole_ms: float = 0.0

    def row(self) -> bytes:
        """The detail as `tasks.client.admission_codes` reads it."""
        return b"%d;%d;%d" % (math.ceil(self.retry_ms), self.remaining, math.ceil(self.whole_ms))


class QuotaStates:
    """The rate limits of keys and of clients: when the next request of each is due, in µs of this process's clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._tats: Timed[float] = Timed(now_ms)

    def take(self, name: str, limit: Gcra, count: int = 1) -> float:
        """Count `count` requests; returns 0 if they are within the limit, else nothing is counted: the µs to wait."""
        now = _now_us()
        taken = limit.take(self._tats.get(name) or 0.0, now, count)
        if taken.allowed:
            self._tats.set(name, taken.tat_us, max(1, math.ceil((taken.tat_us - now) / 1000)))
        return taken.retry_us

    def give_back(self, name: str, limit: Gcra) -> None:
        """A request that was counted was refused for another reason."""
        tat = self._tats.get(name)
        if tat is not None:
            self._tats.replace(name, tat - limit.interval_us)

    def left(self, name: str, limit: Gcra) -> tuple[int, float]:
        """The requests that are left of the burst, and the µs until it is whole again."""
        now = _now_us()
        tat = self._tats.get(name) or 0.0
        return limit.remaining(tat, now), max(0.0, tat - now)


class _Load(NamedTuple):
    """The measured figures of one model, and what may wait so that no request of a class is refused."""

    pressure: Pressure
    calm: dict[tuple[int, int, int], float]


class LocalAdmission:
    """The rules for one process.

    Args:
        capacity: the measured throughput of a model's executors.
        most_bytes: what the store may hold; 0: no limit.
    """

    def __init__(self, settings: Settings, store: MemoryStore, capacity: Capacity, most_bytes: int) -> None:
        self._store = store
        self._capacity = capacity
        self._most_bytes = most_bytes * settings.max_memory_percent / 100
        self._limits = {name: model.max_queue_depth for name, model in settings.models.items()}
        form = Form(settings.admission)
        unit = 1 if form is Form.DEPTH else 1000
        thresholds = tuple(math.inf if each is None else each / unit for each in settings.shed_thresholds())
        headroom, ageing_s = settings.capacity_percent / 100, settings.ageing_ms / 1000
        rule = Admission(form, thresholds, headroom, ageing_s=ageing_s)
        # What has gathered while a model was not loaded is no overload: its requests have their deadlines only.
        patient = replace(rule, thresholds=(math.inf,) * len(thresholds))
        self._rules = {name: patient if model.on_demand else rule for name, model in settings.models.items()}
        self.quotas = QuotaStates(store.now_ms)
        # Whether the memory is used up, as of the last measurement.
        self.is_full = False
        self._loads: dict[str, _Load] = {}
        self._measured_at = 0
        # Admitted requests of each tier, by model and whole second.
        self._arrivals: dict[str, dict[int, list[int]]] = {}

    def refusal(self, out: Outgoing, rank: int) -> Verdict | None:
        """The reason why one more request is not let in; a request that is let in counts against its quota."""
        refused = self.rate_refusal(out)
        if refused is None:
            refused = self.pressure_refusal(out, rank)
            if refused is not None:
                return self.uncounted(out, refused)
        return refused

    def uncounted(self, out: Outgoing, refused: Verdict) -> Verdict:
        """A refusal for another reason than its key's rate: the request does not count against that."""
        if out.quota is not None:
            self.quotas.give_back(out.quota.key_id, _limit(out.quota))
        return self._with_quota(refused, out.quota)

    def rate_refusal(self, out: Outgoing) -> Verdict | None:
        """Count the request against the rate of its key, and refuse it if that is used up."""
        quota = out.quota
        late_us = 0.0 if quota is None else self.quotas.take(quota.key_id, _limit(quota))
        return self._with_quota(Verdict(Status.RATE, late_us / 1000), quota) if late_us else None

    def pressure_refusal(self, out: Outgoing, rank: int) -> Verdict | None:
        """The same without the rate of its key, which is counted already: see `uncounted`."""
        model, quota = out.submission.model, out.quota
        load = self._load_of(model)
        if self.is_full:
            return Verdict(Status.MEMORY, _MEMORY_MS)
        queues = self._store.queues(model)
        queue = queues.tiers[rank]
        own = queue.held[quota.tag] if quota is not None else 0
        kind = (rank, out.deadline_ms, out.queue_limit_ms)
        calm = load.calm.get(kind)
        if calm is None:
            calm = load.calm[kind] = _calm(self._rules[model], load.pressure, self._limits[model], *kind)
        waiting = queues.waiting
        if waiting + own <= calm:
            return None
        return self._judged(out, rank, queues, load.pressure, own)

    def admitted(self, model: str, rank: int) -> None:
        """Count an arrival."""
        second = int(time.monotonic())
        counts = self._arrivals.setdefault(model, {})
        now = counts.get(second)
        if now is None:
            now = counts[second] = [0] * len(TIERS)
            for old in [each for each in counts if each < second - 2 * _STEADY_S]:
                del counts[old]
        now[rank] += 1

    def arrival_rps(self, model: str, rank: int, over_s: int = 5) -> float:
        """Admitted requests a second, over the last whole seconds."""
        second, counts = int(time.monotonic()), self._arrivals.get(model, {})
        return sum(counts[each][rank] for each in range(second - over_s, second) if each in counts) / over_s

    def _judged(self, out: Outgoing, rank: int, queues: ModelQueues, measured: Pressure, own: int) -> Verdict | None:
        model, quota = out.submission.model, out.quota
        depths = tuple(map(len, queues.tiers))
        pressure = Pressure(
            depths, measured.arrivals, measured.rate, measured.first_s, measured.full_s, measured.full, measured.steady
        )
        limit, rule = self._limits[model], self._rules[model]
        times = {"deadline_s": out.deadline_ms / 1000, "queue_limit_s": out.queue_limit_ms / 1000}
        if depths[rank] >= limit:
            why: Shed | None = Shed.QUEUE_FULL
        else:
            why = rule.judge(pressure, rank, own=own, keyed=quota is not None, **times)
        if why is None:
            return None
        retry_s = rule.retry_s(pressure, rank, why, own=own, limit=limit, **times)
        return Verdict(Status[why.name], retry_s * 1000)

    def _with_quota(self, verdict: Verdict, quota: Quota | None) -> Verdict:
        if quota is None:
            return verdict
        remaining, whole_us = self.quotas.left(quota.key_id, _limit(quota))
        return verdict._replace(remaining=remaining, whole_ms=whole_us / 1000)

    def _load_of(self, model: str) -> _Load:
        now = self._store.now_ms()
        if abs(now - self._measured_at) > _MEASURED_EVERY_MS:
            self._measured_at = now
            self._loads.clear()
            self.is_full = 0 < self._most_bytes <= self._store.used_bytes
        load = self._loads.get(model)
        if load is None:
            load = self._loads[model] = _Load(self._measured(model), {})
        return load

    def _measured(self, model: str) -> Pressure:
        of = self._capacity(model)
        rate = of.executors * of.rate
        second, counts, none = int(time.monotonic()), self._arrivals.get(model, {}), [0] * len(TIERS)
        seconds = [counts.get(second - ago, none) for ago in range(1, _STEADY_S + 1)]
        steady = tuple(float(min(tier)) for tier in zip(*seconds, strict=True))
        full = max(1.0, of.rate * of.full_s)
        return Pressure((0,) * len(TIERS), tuple(map(float, seconds[0])), rate, of.first_s, of.full_s, full, steady)


def _limit(quota: Quota) -> Gcra:
    return Gcra(quota.interval_us, quota.burst)


def _now_us() -> float:
    return time.monotonic_ns() / 1000


def _calm(rule: Admission, load: Pressure, limit: int, rank: int, deadline_ms: int, queue_limit_ms: int) -> float:
    """The number that may wait so that no request of this class is refused, whatever waits: one comparison then."""
    form, rate = rule.form, load.rate
    calm: float = limit - 1
    if form is Form.OFF or (rate <= 0 and form is Form.DRAIN):
        return calm
    calm = min(calm, rule.room(load, rank, queue_limit_ms / 1000))
    if rate <= 0:
        return calm
    left = rate * (1 - sum(rule.shares[rank + 1 :])) - sum(load.arrivals[:rank])
    time_s = min(queue_limit_ms / 1000, deadline_ms / 1000 - load.full_s)
    return min(calm, time_s * left if left > 0 else -1.0)

"""Residency: which of the models that are loaded on demand are in memory, where not all of them have room.

    unloaded ──load──▶ loading ──▶ resident ──drain──▶ draining ──unload, when idle──▶ leaving ──▶ unloaded

A model is loaded because requests wait for it, and never leaves without another that needs its room. Whoever waits
longest is next, and nobody passes him on a device that he needs, so each gets its turn.

Who leaves: first a model whose requests have ceased, the least recently used of them; else the one with the least
demand. A loaded model stays for as long as its load took: so at most half of the time goes into loading. It is better
to wait for that than to send away a model with more demand, which would come back at once.

A request whose deadline is near does not wait for that: of those that may leave now, the one with the least demand
does, however much it is asked. Then a model that has answered all that waited may leave before its time.

Demand decides before recency, since under random arrivals the most asked model is often not the most recent one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

# However fast a model loads, processes come and go.
LEAST_RESIDENCE_S = 0.25
# A model without a request for that many of its mean gaps is not asked any more: by chance once in twenty times.
CEASED_GAPS = 3.0
DEMAND_MEMORY_S = 30.0
# A deadline is near when the time left is that many loads: one for its own, and the rest for what comes before it.
URGENT_LOADS = 3.0
FIRST_BACKOFF_S, MAX_BACKOFF_S = 1.0, 60.0
_LOAD_GAIN = 1 / 4
# Fractions of a device are sums of decimal numbers.
_ROUNDING = 1e-9
_FORESIGHT_STEPS = 64


class Stage(Enum):
    """The place of a model between disk and memory; it takes room in all but the first."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    RESIDENT = "resident"
    DRAINING = "draining"  # claims nothing more, and finishes its batches
    LEAVING = "leaving"  # its processes end


@dataclass(frozen=True, slots=True)
class Tenant:
    """One model. Moments are seconds on any one clock.

    Args:
        needs: the room that it takes, of each limit; more than one with several devices.
        since: when its stage began.
        oldest_at: since when its oldest request waits; infinite: nothing waits.
        due_at: the earliest deadline among those that wait longest; infinite: not known.
        busy: it has a batch in hand.
        used_at: the end of its last batch.
        demand: its requests per second, lately.
        load_s: how long loading takes; 0: not known yet.
        not_before: it must not be loaded sooner, for example after a load that failed.
        dismissed: it shall leave in any case.
    """

    name: str
    needs: Mapping[str, float]
    stage: Stage = Stage.UNLOADED
    since: float = -math.inf
    oldest_at: float = math.inf
    busy: bool = False
    used_at: float = -math.inf
    demand: float = 0.0
    load_s: float = 0.0
    not_before: float = -math.inf
    dismissed: bool = False
    due_at: float = math.inf

    @property
    def waits(self) -> bool:
        return self.oldest_at < math.inf

    @property
    def asks_since(self) -> float:
        """Since when its requests wait for it to be loaded. What waited before it left has had its turn."""
        return max(self.oldest_at, self.since)

    def stays_until(self, *, is_urgent: bool) -> float:
        """The end of its minimum residence; infinite before it has begun. `is_urgent`: for another one's deadline."""
        if self.stage is not Stage.RESIDENT:
            return math.inf
        is_done = is_urgent and not (self.busy or self.waits)
        return self.since + (LEAST_RESIDENCE_S if is_done else max(self.load_s, LEAST_RESIDENCE_S))

    def is_urgent(self, now: float) -> bool:
        """Return whether its deadline leaves little more time than loading takes."""
        return self.due_at - now <= URGENT_LOADS * max(self.load_s, LEAST_RESIDENCE_S)

    def has_ceased(self, now: float) -> bool:
        """Return whether nobody seems to ask for it any more."""
        if self.busy or self.waits:
            return False
        idle_s = now - max(self.used_at, self.since)
        gaps = idle_s * self.demand if self.demand else math.inf
        return idle_s >= max(self.load_s, LEAST_RESIDENCE_S) and gaps >= CEASED_GAPS


@dataclass(frozen=True, slots=True)
class Plan:
    """The next steps, by name; and the moment at which there may be others though nothing has happened."""

    load: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    look_at: float = math.inf


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests per second, forgotten exponentially."""

    rate: float = 0.0
    at: float = 0.0

    def seen(self, requests: int, now: float) -> Demand:
        """The demand after `requests` more."""
        return Demand(self.lately(now) + requests / DEMAND_MEMORY_S, now)

    def lately(self, now: float) -> float:
        return self.rate * math.exp(-max(0.0, now - self.at) / DEMAND_MEMORY_S)


def learnt_load_s(before: float, took: float) -> float:
    """The time that loading takes, after a load that `took` so long; `before` is 0 if it is the first."""
    return took if not before else before + (took - before) * _LOAD_GAIN


def backoff_s(failures: int) -> float:
    """The pause after so many loads in a row that failed."""
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 10))


def plan(tenants: Sequence[Tenant], room: Mapping[str, float], now: float) -> Plan:
    """The next steps. `room` is the limit of everything that `needs` name; what it lacks is unlimited."""
    draft = _Draft(tenants, room, now)
    for each in sorted(tenants, key=lambda each: each.asks_since):
        # A model for which no room would suffice keeps nobody waiting.
        if each.stage is not Stage.UNLOADED or not each.waits or not _fits(each, room):
            continue
        if each.not_before > now:
            draft.look_at = min(draft.look_at, each.not_before)
        else:
            draft.make_room_for(each)
    unload = (each.name for each in tenants if each.stage is Stage.DRAINING and not each.busy)
    return Plan(tuple(draft.load), tuple(draft.drain), tuple(unload), draft.look_at)


class _Draft:
    """A plan in the making: what is free, and what is coming when all who leave are gone; of both, without what is kept
    for those who have waited longer.
    """

    def __init__(self, tenants: Sequence[Tenant], room: Mapping[str, float], now: float) -> None:
        self.load: list[str] = []
        self.drain: list[str] = []
        self.look_at = math.inf
        self._now = now
        self._free, self._coming = dict(room), dict(room)
        # Also those that are still being loaded: to wait for their turn to end may be better than to send away another.
        self._victims: list[Tenant] = []
        for each in tenants:
            if each.stage is Stage.UNLOADED:
                continue
            _take(self._free, each, +1)
            if each.stage is Stage.RESIDENT and each.dismissed:
                self.drain.append(each.name)
            elif each.stage in {Stage.LOADING, Stage.RESIDENT}:
                _take(self._coming, each, +1)
                self._victims.append(each)

    def make_room_for(self, each: Tenant) -> None:
        if _fits(each, self._free):
            self.load.append(each.name)
        elif not _fits(each, self._coming):
            self._choose(each)
        _take(self._free, each, +1)
        _take(self._coming, each, +1)
        self._victims.append(each)

    def _choose(self, candidate: Tenant) -> None:
        """Send away the first victims that make room for the candidate, all at once, or wait until they may go."""
        chosen: list[Tenant] = []
        is_urgent = candidate.is_urgent(self._now)
        until = {each.name: each.stays_until(is_urgent=is_urgent) for each in self._victims}
        by_worth = sorted(self._victims, key=lambda victim: _worth(victim, self._now))
        for victim in sorted(by_worth, key=lambda victim: is_urgent and until[victim.name] > self._now):
            if _fits(candidate, self._coming):
                break
            shared = victim.needs.keys() & candidate.needs.keys()
            if any(self._coming.get(limit, math.inf) + _ROUNDING < candidate.needs[limit] for limit in shared):
                chosen.append(victim)
                _take(self._coming, victim, -1)
        self._victims = [each for each in self._victims if each not in chosen]
        stays_until = max(until[each.name] for each in chosen)
        if stays_until <= self._now:
            self.drain += [each.name for each in chosen]
        else:
            self.look_at = min(self.look_at, stays_until)


def ready_in_s(tenants: Sequence[Tenant], room: Mapping[str, float], name: str, now: float) -> float | None:
    """The time until a request of now for that model would find it resident, by asking `plan` about the future; None
    if a load time is not known yet, or nothing helps. Batches that must end are not counted.
    """
    future = {each.name: replace(each, busy=False) for each in tenants}
    if not future[name].waits:
        future[name] = replace(future[name], oldest_at=now)
    at = now
    for _ in range(_FORESIGHT_STEPS):
        if future[name].stage is Stage.RESIDENT:
            return at - now
        if not future[name].load_s:
            return None
        steps = plan(tuple(future.values()), room, at)
        if not _foreseen(future, steps, at):
            at = max(at, _next_load_ends(future, steps.look_at))
            if at == math.inf:
                return None
    return None


def _foreseen(future: dict[str, Tenant], steps: Plan, at: float) -> bool:
    """Take the steps in `future`; returns whether that has made room."""
    for name in steps.load:
        future[name] = replace(future[name], stage=Stage.LOADING, since=at)
    gone = [each.name for each in future.values() if each.stage is Stage.LEAVING]
    for name in (*steps.drain, *steps.unload, *gone):
        # It may be wanted again, but not before those who wait already.
        future[name] = replace(future[name], stage=Stage.UNLOADED, since=at, oldest_at=math.inf, dismissed=False)
    return bool(steps.drain or steps.unload or gone)


def _next_load_ends(future: dict[str, Tenant], look_at: float) -> float:
    """End the loads that end first, unless `look_at` is sooner; returns the time."""
    ends = {each.name: each.since + each.load_s for each in future.values() if each.stage is Stage.LOADING}
    at = min([look_at, *ends.values()])
    for name, end in ends.items():
        if end <= at:
            future[name] = replace(future[name], stage=Stage.RESIDENT, since=at, used_at=at, oldest_at=math.inf)
    return at


def _worth(each: Tenant, now: float) -> tuple[bool, int, bool, float]:
    """The order in which models leave. Demands within a factor of two are alike: then the least recently used goes."""
    used_at = max(each.used_at, each.since)
    if each.has_ceased(now):
        return (False, 0, False, used_at)
    magnitude = math.frexp(each.demand)[1] if each.demand > 0 else -sys.maxsize
    return (True, magnitude, each.waits, used_at)


def _fits(each: Tenant, free: Mapping[str, float]) -> bool:
    return all(need <= free.get(limit, math.inf) + _ROUNDING for limit, need in each.needs.items())


def _take(free: dict[str, float], each: Tenant, sign: int) -> None:
    for limit, need in each.needs.items():
        if limit in free:
            free[limit] -= sign * need

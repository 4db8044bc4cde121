"""The models that are served, as far as this frontend knows: one read of Redis serves all who want to know.

    GET /readyz ──────────────┐                    ┌─ one at a time, shared by all who ask meanwhile
    a model never served? ────┼──▶ Readiness.look ─┴─▶ register of workers, what is paused, what was ever loaded
    504: why? ────────────────┘          └ Redis does not say in time: None

With several shards it is ready while one of them answers. Where they are on other servers than the home, they say what
is served while the home is away: each has the heartbeats and the ready executors of every worker.

A request for a model that was ready once does not ask: its name is in a set. For a model that is loaded on demand it
does, at most once a second for all: if its deadline cannot hold the load, it is refused, and the model is loaded for
the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
from redis.exceptions import RedisError

from batching.claim.registry import read_pace
from batching.executor import ExecutorState
from batching.policy.residency import Stage
from config.keys import Shard
from config.schema import ModelSettings
from config.shards import Place, Places
from config.tiers import Tier
from tasks.errors import DeadlineExceeded, ModelUnavailable
from tasks.fleet.all_places import AllPlaces, answered
from tasks.fleet.desired_state import DesiredState
from tasks.fleet.registry_reader import Fleet, WorkerRow, ready_models

logger = logging.getLogger(__name__)

FRESH_S = 1.0
# Probes wait a second: with this limit the answer is in time, including both ways.
PROBE_S = 0.5
# A caller whose deadline has passed is not kept longer than deadlines are precise.
_REASON_S = 0.03
_REQUIRE_S = 0.5
_WANTED_MS = 10_000
# For the home, and the same again for the shards in its place: both are over before `PROBE_S` is.
_SHARDS_S = 0.2


@dataclass(frozen=True, slots=True)
class Cold:
    """A model that is loaded on demand, and nowhere now. `ready_in_s`: until a request would be answered, None: not
    known. `failed`: its loads fail, and this is the time until the next.
    """

    ready_in_s: float | None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """`served` models have an executor that takes batches, or will when requests wait; `known` models have had one at
    some time; `paused` has the tiers that are not claimed, by model; `cold` the models that are loaded nowhere.
    """

    served: frozenset[str]
    known: frozenset[str]
    paused: Mapping[str, frozenset[Tier]]
    cold: Mapping[str, Cold]


class Readiness:
    """The readiness of models, for the greenlets of one process. `clock` gives monotonic seconds."""

    def __init__(
        self,
        places: Places,
        fleet: Fleet,
        models: Mapping[str, ModelSettings],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = places.home.redis
        self._places = places
        self._all = AllPlaces(places)
        self._fleet = fleet
        self._desired_state = DesiredState(places.home.redis)
        self._models = tuple(models)
        self._on_demand = frozenset(name for name, model in models.items() if model.on_demand)
        # When each was last asked to be loaded.
        self._wanted_at: dict[str, float] = {}
        self._clock = clock
        # Those of `known` models that are not loaded on demand: nothing is asked about them.
        self._unasked: frozenset[str] = frozenset()
        self._last: Standing | None = None
        # When the last finished read began, and when the current one did.
        self._looked_at = float("-inf")
        self._began = float("-inf")
        self._looking: gevent.Greenlet[..., None] | None = None

    def look(self, within_s: float = PROBE_S, max_age_s: float = FRESH_S) -> Standing | None:
        """The state read at most `max_age_s` ago; None when Redis cannot be reached, or takes longer than
        `within_s`.
        """
        asked_at = self._clock()
        until = asked_at + within_s
        while self._looked_at < asked_at - max_age_s:
            if self._looking is None:
                self._began = self._clock()
                self._looking = gevent.spawn(self._look)
            # A read that others have waited for in vain is not waited for again.
            left_s = min(until, self._began + within_s) - self._clock()
            if left_s <= 0 or not self._ended(self._looking, left_s):
                return None
        return self._last

    def knows(self, model: str) -> bool:
        """True if the model was ready once, as far as this process knows, and stays loaded: `refusal` then has none."""
        return model in self._unasked

    def refusal(self, model: str, timeout_s: float) -> ModelUnavailable | None:
        """The error for a request that would wait in vain: no executor has ever been ready for its model, or its
        `timeout_s` is shorter than the model needs to be loaded.
        """
        if model in self._unasked:
            return None
        standing = self.look(_REQUIRE_S, max_age_s=FRESH_S if model in self._on_demand else 0.0)
        # While Redis is away the queue itself says so, or the model is called without it.
        if standing is None:
            return None
        cold = standing.cold.get(model)
        if cold is not None:
            return self._cold_refusal(model, cold, timeout_s)
        if model in standing.known:
            return None
        return ModelUnavailable(
            f"no executor has been ready for {model} yet: it is still loading, or no worker serves it"
        )

    def _cold_refusal(self, model: str, cold: Cold, timeout_s: float) -> ModelUnavailable | None:
        if cold.failed:
            again = "`manage.py models` says why"
            return ModelUnavailable(f"{model} could not be loaded; {again}", cold.ready_in_s or 1.0)
        if cold.ready_in_s is None or cold.ready_in_s <= timeout_s:
            return None
        self.want(model)
        # A worker sees that with its next heartbeat.
        ready_in_s = cold.ready_in_s + FRESH_S
        return ModelUnavailable(
            f"{model} is not loaded, and will be in about {ready_in_s:.1f} s, after this request's deadline", ready_in_s
        )

    def want(self, model: str) -> None:
        """Have a worker load a model that is loaded on demand, with its next heartbeat."""
        now = self._clock()
        if now - self._wanted_at.get(model, float("-inf")) < FRESH_S:
            return
        self._wanted_at[model] = now
        try:
            self._redis.set(Shard().wanted(model), 1, px=_WANTED_MS)
        except RedisError as error:
            logger.debug("could not ask for %s to be loaded: %s", model, error)

    def explained(self, error: DeadlineExceeded, model: str, tier: Tier) -> DeadlineExceeded:
        """The error with the reason why `model` did not answer, if that is known."""
        standing = self.look(_REASON_S)
        if standing is None:
            return error
        if tier in standing.paused.get(model, ()):
            return DeadlineExceeded(f"{error.message}: {model} is paused for {tier.value}")
        if model in standing.cold:
            return DeadlineExceeded(f"{error.message}: {model} was not loaded in time")
        if model not in standing.served:
            return DeadlineExceeded(f"{error.message}: no executor is ready for {model}")
        return error

    @staticmethod
    def _ended(looking: gevent.Greenlet[..., None], within_s: float) -> bool:
        looking.join(within_s)
        return bool(looking.dead)

    def _look(self) -> None:
        try:
            self._last = self._seen()
            self._unasked |= self._last.known - self._on_demand
        except RedisError as error:
            self._last = None
            logger.debug("could not read which models are ready: %s", error)
        except Exception:
            self._last = None
            logger.exception("could not read which models are ready; the next request reads again")
        finally:
            self._looked_at = self._began
            self._looking = None

    def _seen(self) -> Standing:
        if len(self._places.by_server()) == 1:
            return self._standing(self._at_home(), self._loaded(PROBE_S))
        # Beside each other, so that a probe has its answer whichever of them hangs.
        at_home = gevent.spawn(_outcome, self._at_home)
        began = self._clock()
        loaded = self._loaded(_SHARDS_S)
        at_home.join(max(0.0, began + _SHARDS_S - self._clock()))
        home = at_home.value
        return self._standing(home if isinstance(home, _Home) else self._without_home(), loaded)

    def _standing(self, home: _Home, loaded: frozenset[str]) -> Standing:
        # A server that has lost its data does not know the earlier loads.
        return Standing(home.served & set(self._models), loaded | home.served, home.paused, home.cold)

    def _at_home(self) -> _Home:
        workers = self._fleet.healthy()
        paused = {
            name: desired.paused for name, desired in self._desired_state.read(self._models).items() if desired.paused
        }
        cold = {name: row for name in self._on_demand if (row := _cold(name, workers)) is not None}
        return _Home(frozenset(ready_models(workers)), paused, cold)

    def _loaded(self, within_s: float) -> frozenset[str]:
        """The models that were loaded at some time. Raises RedisError if no shard answers."""
        if not self._models:
            return frozenset()

        def note(pipeline: Any, place: Place) -> None:
            pipeline.mget([place.keys.edition(name) for name in self._models])

        # Not of the home, which has none of the requests that come here.
        asked = answered(self._all.ask(note, within_s, self._places.shards))
        return frozenset(
            name for each in asked for name, loads in zip(self._models, each.replies[0], strict=True) if loads
        )

    def _without_home(self) -> _Home:
        """What the shards say of a fleet whose home is away; pauses are those that were read last."""

        def note(pipeline: Any, place: Place) -> None:
            pipeline.time()
            for name in self._models:
                pipeline.hgetall(place.keys.pace(name))

        served: set[str] = set()
        for each in answered(self._all.ask(note, _SHARDS_S, self._places.shards)):
            (seconds, micros), *paces = each.replies
            now_ms = seconds * 1000 + micros / 1000
            for name, rows in zip(self._models, paces, strict=True):
                beats = (read_pace(row) for row in rows.values())
                if any(ready and self._fleet.is_fresh(now_ms - at_ms) for at_ms, ready in beats):
                    served.add(name)
        last = self._last
        return _Home(frozenset(served), last.paused if last else {}, {})


@dataclass(frozen=True, slots=True)
class _Home:
    """The part of a `Standing` that is the fleet's."""

    served: frozenset[str]
    paused: Mapping[str, frozenset[Tier]]
    cold: Mapping[str, Cold]


def _outcome(call: Callable[[], _Home]) -> _Home | RedisError:
    try:
        return call()
    except RedisError as error:
        return error


def _cold(model: str, workers: Sequence[WorkerRow]) -> Cold | None:
    """The model, if it is loaded in none of the workers that serve it."""
    rows = [each for worker in workers for each in worker.models if each.model == model]
    states = [each.on_demand for each in rows if each.on_demand is not None]
    if not rows or len(states) < len(rows) or any(each.residency == Stage.RESIDENT.value for each in states):
        return None
    if all(each.state == ExecutorState.FAILED.value for each in rows):
        return Cold(min(each.retry_in_ms or 0 for each in states) / 1000, failed=True)
    known = [each.ready_in_ms for each in states if each.ready_in_ms is not None]
    return Cold(min(known) / 1000 if known else None)

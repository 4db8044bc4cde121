"""The models that are served, as far as this frontend knows: one read of Redis serves all who want to know.

    GET /readyz ──────────────┐                    ┌─ one at a time, shared by all who ask meanwhile
    a model never served? ────┼──▶ Readiness.look ─┴─▶ register of workers, what is paused, what was ever loaded
    504: why? ────────────────┘          └ Redis does not say in time: None

A request for a model that was ready once does not ask: its name is in a set.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import gevent
from redis import Redis
from redis.exceptions import RedisError

from config.keys import Shard
from config.tiers import Tier
from tasks.errors import DeadlineExceeded, ModelUnavailable
from tasks.fleet.desired_state import DesiredState
from tasks.fleet.registry_reader import Fleet, ready_models

logger = logging.getLogger(__name__)

FRESH_S = 1.0
# Probes wait a second: with this limit the answer is in time, including both ways.
PROBE_S = 0.5
# A caller whose deadline has passed is not kept longer than deadlines are precise.
_REASON_S = 0.03
_REQUIRE_S = 0.5


@dataclass(frozen=True, slots=True)
class Standing:
    """`served` models have an executor that takes batches; `known` models have had one at some time; `paused` has the
    tiers that are not claimed, by model.
    """

    served: frozenset[str]
    known: frozenset[str]
    paused: Mapping[str, frozenset[Tier]]


class Readiness:
    """The readiness of models, for the greenlets of one process. `clock` gives monotonic seconds."""

    def __init__(
        self, redis: Redis, fleet: Fleet, models: tuple[str, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._redis = redis
        self._fleet = fleet
        self._desired_state = DesiredState(redis)
        self._models = models
        self._clock = clock
        self._known: frozenset[str] = frozenset()
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
        """True if the model was ready once, as far as this process knows: `refusal` then has none."""
        return model in self._known

    def refusal(self, model: str) -> ModelUnavailable | None:
        """The error for a model that no executor has ever been ready for: a request would wait in vain."""
        if model in self._known:
            return None
        standing = self.look(_REQUIRE_S, max_age_s=0.0)
        # While Redis is away the queue itself says so, or the model is called without it.
        if standing is None or model in standing.known:
            return None
        return ModelUnavailable(
            f"no executor has been ready for {model} yet: it is still loading, or no worker serves it"
        )

    def explained(self, error: DeadlineExceeded, model: str, tier: Tier) -> DeadlineExceeded:
        """The error with the reason why `model` did not answer, if that is known."""
        standing = self.look(_REASON_S)
        if standing is None:
            return error
        if tier in standing.paused.get(model, ()):
            return DeadlineExceeded(f"{error.message}: {model} is paused for {tier.value}")
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
            self._known |= self._last.known
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
        served = ready_models(self._fleet.healthy())
        names = [Shard().edition(name) for name in self._models]
        loads = cast("list[bytes | None]", self._redis.mget(names)) if names else []
        # A server that has lost its data does not know the earlier loads.
        known = {name for name, times in zip(self._models, loads, strict=True) if times} | served
        paused = {
            name: desired.paused for name, desired in self._desired_state.read(self._models).items() if desired.paused
        }
        return Standing(frozenset(served & set(self._models)), frozenset(known), paused)

"""The data of the page: the last hour once, then the current state every two seconds."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from gevent.lock import BoundedSemaphore
from redis.exceptions import RedisError

from batching.policy import POLICIES, default_max_wait_s
from config.settings import ModelSettings
from config.tiers import TIERS, Tier
from tasks.fleet.dead_letters import DeadLetters
from tasks.fleet.desired_state import TUNABLE, WEIGHT, Desired, DesiredState, weight_of, with_desired
from tasks.fleet.process_register import RoleRow, Roles, differences
from tasks.fleet.registry_reader import WorkerRow
from tasks.observability import metrics, slo
from tasks.observability.error_summary import error_summary
from tasks.observability.history import STEP_S, Point, slo_change
from tasks.observability.slow_log import SlowRequest
from tasks.protocol.results import DeadLetter
from webapp.api.health import payload_bytes
from webapp.ops.health_findings import Lately, Standing, findings, status
from webapp.services import Services

EVERY_S = 2.0
_SHOWN = 25
_REASON = 300
_encode = msgspec.json.Encoder().encode


class Feed:
    """The feed of one process. However many pages are open, Redis is read once in two seconds."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._letters = DeadLetters(services.places)
        self._desired_state = DesiredState(services.redis)
        self._roles = Roles(services.redis, lease_ttl_s=services.settings.lease_ttl_s)
        self._asking = BoundedSemaphore(1)
        self._latest = b""
        self._latest_at = float("-inf")

    def hello(self) -> bytes:
        """The constant data and the last hour. Raises RedisError."""
        settings = self._services.settings
        return _encode(
            {
                "step_s": STEP_S,
                "every_s": EVERY_S,
                "bounds_s": metrics.SECONDS,
                "sizes": metrics.SIZES,
                "tiers": [tier.value for tier in TIERS],
                "models": list(settings.models),
                "policies": list(POLICIES),
                "callers_own": sorted(slo.CALLERS_OWN),
                "points": self._services.history.points(),
            }
        )

    def now(self) -> bytes:
        """The current state, at most two seconds old; an error message when Redis is away."""
        with self._asking:
            if time.monotonic() - self._latest_at >= EVERY_S / 2:
                try:
                    self._latest = _encode(self._ask())
                except RedisError as error:
                    self._latest = _encode({"at": time.time(), "error": f"Redis is not reachable: {error}"})
                self._latest_at = time.monotonic()
            return self._latest

    def _ask(self) -> dict[str, Any]:
        services = self._services
        models = list(services.settings.models)
        workers = services.fleet.workers()
        healthy = services.fleet.healthy_of(workers)
        waiting = services.waiting.read(models, workers)
        queues = waiting.queues
        point = services.history.now(workers, queues)
        standings = self._standings(point)
        objectives = slo.objectives(services.settings)
        everybody = self._roles.rows()
        lately = self._lately(point, everybody)
        desired = self._desired_state.read(models)
        paused = {name: each.paused for name, each in desired.items() if each.paused}
        return {
            "at": time.time(),
            "status": status(models, workers, healthy, waiting.shards),
            "findings": findings(models, waiting, workers, healthy, standings, objectives, lately, paused),
            "point": point,
            "slo": {tier.value: each for tier, each in standings.items()},
            "models": [_served(services.settings.models[name], each) for name, each in desired.items()],
            "queues": queues,
            "payloads": payload_bytes(services.client),
            "shards": waiting.shards,
            "workers": [_worker(each, each in healthy) for each in workers],
            "processes": [_process(each, self._roles.is_silent(each)) for each in everybody],
            "dead": [_shortened(each) for each in self._letters.newest(_SHOWN)],
            "slow": _newest(services.slow.newest(_SHOWN)),
        }

    def _lately(self, now: Point, everybody: list[RoleRow]) -> Lately:
        five, just = (self._services.history.ago(seconds) or now for seconds in (300, 15))
        asked: dict[Tier, int] = {}
        refused: dict[Tier, int] = {}
        for tier in TIERS:
            codes = now.requests.get(tier.value, {})
            before = just.requests.get(tier.value, {})
            # The growth of each sum; one that was reset in between counts from 0.
            grown = {code: n - before.get(code, 0) if n >= before.get(code, 0) else n for code, n in codes.items()}
            asked[tier], refused[tier] = sum(grown.values()), grown.get("SERVICE_OVERLOADED", 0)
        silent = tuple(each for each in everybody if self._roles.is_silent(each))
        return Lately(
            asked,
            refused,
            now.dead - five.dead,
            five.workers.get("healthy", 0),
            silent,
            frozenset(each.role for each in everybody if each not in silent),
            tuple(differences(everybody)),
        )

    def _standings(self, now: Point) -> dict[Tier, Standing]:
        then = {window: self._services.history.ago(seconds) or now for window, seconds in slo.WINDOWS_S.items()}
        standings = {}
        for tier, objective in slo.objectives(self._services.settings).items():
            changes = {window: slo_change(each, now, tier.value) for window, each in then.items()}
            attained = {window: slo.attainment(*change) for window, change in changes.items()}
            standings[tier] = Standing(
                objective.latency_s * 1000,
                objective.target,
                attained,
                {window: objective.burn_rate(each) for window, each in attained.items()},
                {window: counted for window, (counted, _) in changes.items()},
            )
        return standings


def _served(configured: ModelSettings, desired: Desired) -> dict[str, Any]:
    """The settings that a model runs with. `options` are the policy's, `tuned` the keys that differ from the file."""
    now = with_desired(configured, desired)
    return {
        "name": now.name,
        **{key: getattr(now, key) for key in TUNABLE},
        "wait_ms": default_max_wait_s(now.policy) * 1000 if now.max_wait_ms is None else now.max_wait_ms,
        "options": now.policy_options,
        # Per cent, of a version beside a model's own.
        "weight": weight_of(configured, desired) if now.name != now.family else None,
        "tuned": sorted([*desired.tuned, *([WEIGHT] if desired.weight is not None else [])]),
        "paused": [tier.value for tier in TIERS if tier in desired.paused],
        "reload": desired.reload.generation,
        "refusal": error_summary(desired.refusal, _REASON) if desired.is_refused else "",
    }


def _process(row: RoleRow, silent: bool) -> dict[str, Any]:
    executors = row.executors.values()
    return {
        **{key: getattr(row, key) for key in ("id", "role", "name", "pid", "started_at", "version", "age_ms", "usage")},
        "silent": silent,
        "executors_bytes": sum(each.memory_bytes for each in executors),
    }


def _worker(row: WorkerRow, healthy: bool) -> dict[str, Any]:
    executors = tuple(
        msgspec.structs.replace(each, error=error_summary(each.error) if each.error else None) for each in row.models
    )
    shown = msgspec.to_builtins(msgspec.structs.replace(row, models=executors))
    return {**shown, "name": row.name, "healthy": healthy}


def _shortened(letter: DeadLetter) -> DeadLetter:
    """A dead letter with its reason cut to one line: reasons hold texts of callers and models."""
    return msgspec.structs.replace(letter, reason=error_summary(letter.reason, _REASON), traceback="")


def _newest(requests: list[SlowRequest]) -> list[SlowRequest]:
    return sorted(requests, key=lambda each: -each.at)

"""Health, readiness and metrics: for load balancers, operators and Prometheus."""

from __future__ import annotations

import contextlib
from collections import Counter

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from redis.exceptions import RedisError

from batching.executor import ExecutorState
from config.installation import PROGRAM
from config.keys import Shard
from tasks.client.sharded_client import AnyClient
from tasks.fleet.queue_reader import Waiting
from tasks.fleet.registry_reader import (
    BREAKER_STATES,
    WorkerRow,
    breakers,
    gpu_utilisation,
    ready_models,
    safe_sizes,
    utilisation,
)
from tasks.fleet.scaling import ScaleBoard
from tasks.observability import metrics as declared
from tasks.observability import slo
from tasks.observability.history import Point, slo_change
from webapp.api.machine import machine_metrics
from webapp.errors import ApiError
from webapp.ops.health_findings import status as overall
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

_encode = msgspec.json.Encoder().encode
_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def alive(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /healthz`: this process is alive; with the number of callers that wait in it, and the bytes that it keeps to
    send their requests again after a failover.
    """
    client = services.client
    body = {
        "status": "alive",
        "process": client.name,
        "waiting": client.waiting,
        "resendable_bytes": client.resendable_bytes,
    }
    return HttpResponse(200, _encode(body), call.request_id)


def ready(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /readyz[?model=m]`: Redis answers, and a model, or `m`, has an executor that takes batches.

    For strangers and for probes, which wait a second: it reveals no address, and reads Redis at most once a second.
    """
    asked = call.query("model")
    models = list(services.settings.models) if asked is None else services.versions.answering(asked)
    standing = services.readiness.look()
    if standing is None:
        raise ApiError("BACKEND_UNAVAILABLE", "Redis does not answer")
    if not services.identity.ready:
        raise ApiError("BACKEND_UNAVAILABLE", "the callers' keys are not loaded yet")
    served = [name for name in models if name in standing.served]
    missing = [name for name in models if name not in standing.served]
    if not served:
        raise ApiError("MODEL_UNAVAILABLE", f"no healthy worker for {', '.join(missing) or 'any model'}")
    body = {"status": "ready", "models": sorted(served), "unavailable_models": missing}
    return HttpResponse(200, _encode(body), call.request_id)


def health(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /internal/health`: 200 while callers are served, 503 when they are not."""
    try:
        workers = services.fleet.workers()
        healthy = services.fleet.healthy_of(workers)
        waiting = services.waiting.read(services.settings.models, workers)
        rate = services.metrics.requests_per_second()
        redis = "up"
        served = set(ready_models(healthy))
        status = overall(list(services.settings.models), workers, healthy, waiting.shards)
    except RedisError:
        workers, healthy, rate, redis = [], [], 0.0, "down"
        waiting, served = _without_home(services)
        status = "degraded" if served else "unhealthy"
    missing = [name for name in services.settings.models if name not in served]
    body = {
        "status": status,
        "executor_utilization": round(utilisation(healthy), 4),
        "gpu_utilization": None if (gpus := gpu_utilisation(healthy)) is None else round(gpus, 4),
        "queue_depth": sum(row.depth for row in waiting.queues),
        "requests_per_second": round(rate, 2),
        "workers": len(workers),
        "healthy_workers": len(healthy),
        "redis": redis,
        "unavailable_models": missing,
        "breakers": breakers(healthy, services.settings.models) if redis == "up" else {},
    }
    if waiting.shards:
        body["unavailable_shards"] = sorted(waiting.down)
    return HttpResponse(503 if status == "unhealthy" else 200, _encode(body), call.request_id)


def _without_home(services: Services) -> tuple[Waiting, set[str]]:
    """The requests that wait and the models that are served, as told by shards on other servers than the home."""
    if len(services.places.by_server()) < 2:
        return Waiting(), set()
    standing = services.readiness.look()
    try:
        return services.waiting.read(services.settings.models, ()), set(standing.served if standing else ())
    except RedisError:
        return Waiting(), set()


def scale(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /internal/scale[?pool=p|?model=m]`: the autoscaler's last decision, for KEDA's `metrics-api` and the like;
    with several groups of workers the sum, or that of a pool, or of those that serve a model.
    """
    try:
        row = ScaleBoard(services.redis).read()
    except RedisError as error:
        raise ApiError("BACKEND_UNAVAILABLE", f"Redis is not reachable: {error}") from error
    if row is None:
        raise ApiError("NOT_FOUND", f"no autoscaler runs; start one with `{PROGRAM} autoscale`")
    row = row.of(pool=call.query("pool"), model=call.query("model"))
    if row is None:
        raise ApiError("NOT_FOUND", "no workers of that pool, or for that model, are scaled")
    return HttpResponse(200, _encode(row), call.request_id)


def metrics(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /metrics`: the sums of all processes, and the gauges of this moment."""
    registry = CollectorRegistry(auto_describe=False)
    try:
        families = [*services.metrics.collect(), *_gauges(services)]
    except RedisError as error:
        raise ApiError("BACKEND_UNAVAILABLE", f"Redis is not reachable: {error}") from error
    registry.register(_Collected(families))
    return HttpResponse(200, generate_latest(registry), call.request_id, _PROMETHEUS_TEXT)


class _Collected:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _gauges(services: Services) -> list[Metric]:
    workers: list[WorkerRow] = services.fleet.workers()
    waiting = services.waiting.read(services.settings.models, workers)
    queues = waiting.queues
    healthy = services.fleet.healthy_of(workers)
    depth = declared.QUEUE_DEPTH.family()
    oldest = declared.QUEUE_OLDEST.family()
    for row in queues:
        depth.add_metric((row.model, row.tier), row.depth)
        oldest.add_metric((row.model, row.tier), row.oldest_ms / 1000)
    states = declared.WORKERS.family()
    states.add_metric(("healthy",), len(healthy))
    states.add_metric(("unhealthy",), len(workers) - len(healthy))
    executors = declared.EXECUTORS.family()
    running = Counter((each.model, each.state) for worker in healthy for each in worker.models)
    for model in services.settings.models:
        for state in ExecutorState:
            executors.add_metric((model, state.value), running[model, state.value])
    resident = declared.RESIDENT.family()
    for worker in healthy:
        loaded = {each.model: False for each in worker.models}
        loaded |= {each.model: True for each in worker.models if each.state == ExecutorState.READY.value}
        for model, is_loaded in loaded.items():
            resident.add_metric((model, worker.name), int(is_loaded))
    now = services.history.now(workers, queues)
    dead = declared.DEAD_LETTERS.family()
    dead.add_metric((), now.dead)
    owed = declared.CALLBACKS_OWED.family()
    owed.add_metric((), services.redis.zcard(Shard().callbacks()))
    families: list[Metric] = [depth, oldest, states, executors, resident, dead, owed]
    if waiting.shards:
        # With one shard, /metrics itself says whether it is up.
        up = declared.SHARD_UP.family()
        for shard in waiting.shards:
            up.add_metric((shard.name,), 0 if shard.error else 1)
        families.append(up)
    families += [
        *_blobs(services),
        *_faults(services, healthy),
        *_gpus(healthy),
        *_objectives(services, now),
        *machine_metrics(services.places),
    ]
    scale = ScaleBoard(services.redis).read()
    if scale is not None:
        # Without an autoscaler there is no such number, rather than a wrong one.
        wanted = declared.WORKERS_WANTED.family()
        wanted.add_metric((), scale.wanted)
        families.append(wanted)
        pools = declared.POOL_WORKERS_WANTED.family()
        for each in scale.groups:
            pools.add_metric((each.pool,), each.wanted)
        families.append(pools)
    return families


def _blobs(services: Services) -> list[Metric]:
    family = declared.BLOB_BYTES.family()
    for state, size in payload_bytes(services.client).items():
        family.add_metric((state,), size)
    return [family]


def payload_bytes(client: AnyClient) -> dict[str, int]:
    """The bytes of large payloads by their state; without those in Redis where that does not answer."""
    found = {"shared": client.shared_bytes}
    with contextlib.suppress(RedisError):
        usage = client.blob_usage()
        found |= {"live": usage.all_bytes - usage.kept_bytes, "kept": usage.kept_bytes}
    return found


def _faults(services: Services, healthy: list[WorkerRow]) -> list[Metric]:
    """The breaker state and safe batch size of each model; a model that never ran out of memory has no safe size."""
    breaker = declared.BREAKER_STATE.family()
    for model, state in breakers(healthy, services.settings.models).items():
        breaker.add_metric((model,), BREAKER_STATES.index(state))
    safe = declared.SAFE_BATCH_SIZE.family()
    for model, size in safe_sizes(healthy).items():
        safe.add_metric((model,), size)
    return [breaker, safe]


def _gpus(healthy: list[WorkerRow]) -> list[Metric]:
    """The GPUs of each worker; one that does not tell something has no such sample."""
    families = {
        "utilization": declared.GPU_UTILIZATION.family(),
        "memory_used_bytes": declared.GPU_MEMORY_USED.family(),
        "memory_total_bytes": declared.GPU_MEMORY_TOTAL.family(),
        "temperature_celsius": declared.GPU_TEMPERATURE.family(),
    }
    for worker in healthy:
        for gpu in worker.gpus:
            for key, family in families.items():
                if (value := getattr(gpu, key)) is not None:
                    family.add_metric((worker.name, gpu.device), value)
    return list(families.values())


def _objectives(services: Services, now: Point) -> list[Metric]:
    """The objectives over the windows that the history in Redis spans; Prometheus' own rules go further back."""
    latency = declared.SLO_LATENCY.family()
    target = declared.SLO_TARGET.family()
    met, burn = declared.SLO_ATTAINMENT.family(), declared.SLO_BURN_RATE.family()
    for tier, objective in slo.objectives(services.settings).items():
        latency.add_metric((tier.value,), objective.latency_s)
        target.add_metric((tier.value,), objective.target)
    for window, seconds in slo.WINDOWS_S.items():
        then = services.history.ago(seconds) or now
        for tier, objective in slo.objectives(services.settings).items():
            attained = slo.attainment(*slo_change(then, now, tier.value))
            met.add_metric((tier.value, window), attained)
            burn.add_metric((tier.value, window), objective.burn_rate(attained))
    return [latency, target, met, burn]

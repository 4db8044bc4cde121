"""The parts of one batching worker: an executor and a claim loop per GPU, for the models that it serves; the heartbeat.

WorkerRunner ──┬─ minilm/0:  ProcessExecutor ◀─▶ ClaimLoop
               ├─ minilm/1:  ProcessExecutor ◀─▶ ClaimLoop
               ├─ echo/0:    …
               └─ heartbeat: beats, reports its state, gives back leases of dead workers, flushes metrics
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from celery.worker import state as worker_state
from redis import Redis
from redis.exceptions import RedisError

from batching.blobs.local_first import files_of
from batching.claim.idle_watch import IdleWatch
from batching.claim.loop import ClaimLoop
from batching.claim.place_lines import PlaceLines
from batching.claim.priorities import PriorityLists
from batching.claim.registry import make_worker_id
from batching.claim.sharded_registry import ShardedRegistry
from batching.claim.sharded_store import claimed_per_s_of, make_store
from batching.claim.store import BatchStore
from batching.claim.strays import ShardedStrays
from batching.policy_settings import make_policy
from batching.ports import FollowUp, Observer
from config.model_files.pools import assignment
from config.process.devices import executor_count, this_machine
from config.process.memory import settle_heap
from config.process.threads import in_parallel
from config.settings import ModelSettings, Settings, load_settings
from config.shards import open_places
from tasks.accounts.ledger import LedgerBuffer, LedgerStream
from tasks.fleet.liveness import Liveness
from tasks.fleet.process_register import Presence
from tasks.fleet.registry_reader import WorkerRow
from tasks.observability.batch_log import BatchLog
from tasks.observability.explain import explain
from tasks.observability.metrics import MetricsFlusher
from tasks.observers.batch_log import BatchLogObserver
from tasks.observers.fan_out import Observers
from tasks.observers.ledger import LedgerObserver
from tasks.observers.metrics import WorkerTelemetry
from tasks.protocol.disclosure import Disclosure
from tasks.protocol.outputs import payloads_of
from tasks.protocol.results import CeleryCodec
from tasks.protocol.seal import seal_of
from workers import breakers
from workers.celery.learnt_stats import shown
from workers.celery.started_marks import StartedMarks
from workers.epochs import ModelEpochs
from workers.executor.on_demand import OnDemandExecutor
from workers.executor.process_executor import ProcessExecutor
from workers.health.nvml import open_nvml
from workers.health.reactions import WorkerReactions
from workers.health.speed import SpeedWatch
from workers.health.watch import Driver, HealthWatch
from workers.reconciler import Reconciler
from workers.report import OFFLINE, RUNNING, STOPPING, WorkerReport
from workers.residency.assembly import make_residency, shared_devices

logger = logging.getLogger(__name__)

EXIT_OFFLINE = 1
BEAT_EVERY_S = 1.0
# When all loops are idle, the metrics hardly change. Their last work has been written, since a loop counts as idle
# only seconds after it.
IDLE_BEATS = 10
# Longer than the Redis timeouts of one round of the heartbeat together: only a hanging thread is this late.
_HEART_STANDS_STILL_S = 60.0
# Time for a claim that is under way to return, so that it can be given back too.
COLD_GRACE_S = 0.5
# The two threads of a loop pass work to each other across Redis and a pipe. At CPython's default of 5 ms, the one that
# waits for the interpreter would wait longer than a whole batch takes.
SWITCH_INTERVAL_S = 0.0005


class WorkerRunner:
    """`batching.claim.bootstep.BatchRunner`: built with the Celery app, started by the bootstep."""

    codec_type = CeleryCodec
    open_driver: Callable[[], Driver | None] = staticmethod(open_nvml)

    def __init__(
        self, settings: Settings, follow_up: FollowUp, redis: Redis | None = None, store: BatchStore | None = None
    ) -> None:
        self._settings = settings
        self._served = assignment(settings)
        self._places = open_places(settings, redis)
        self._redis = self._places.home.redis
        self.worker_id = make_worker_id(os.getpid())
        self.consumer: Any = None
        self._stop = threading.Event()
        # How long batches in the executors had at the stop; None before that.
        self._grace_s: float | None = None
        # Frontends must not count on an executor that has just died, so the heartbeat does not wait for its next time.
        self._news = threading.Event()
        batch_log = BatchLog(self._redis, max_bytes=settings.explain_max_bytes)
        on_lost = batch_log.lost if settings.explain == "on" else None
        lines = PlaceLines(self._places)
        store = store or make_store(settings, lines, self.worker_id)
        self._registry = ShardedRegistry(
            lines, settings.lease_ttl_s, on_lost, lambda _: self._telemetry.gone(), claimed_per_s_of(store)
        )
        self._flusher = MetricsFlusher(self._redis)
        self._priorities = PriorityLists(self._redis)
        disclosure = Disclosure(settings.error_detail, settings.auth)
        self._seal = seal_of(settings)
        codec = self.codec_type(settings.result_ttl_ms, disclosure, settings.largest_input_bytes, self._seal)
        self._batch_log = BatchLogObserver(batch_log, lambda: self.name) if settings.explain == "on" else None
        self._ledger = LedgerObserver(LedgerBuffer(LedgerStream(self._redis))) if settings.keeps_ledger else None
        self._tracer: Any = None
        if settings.otlp_endpoint:
            # Imported here: OpenTelemetry is loaded only where it is used.
            from tasks.observers.tracing import BatchTracer

            self._tracer = BatchTracer(settings)
        self._telemetry = WorkerTelemetry(
            self._dispatcher,
            settings.events_per_second,
            mark_started=StartedMarks(self._redis),
            counting=settings.metrics == "on",
            disclosure=disclosure,
            payloads=settings.shows_payloads,
        )
        for name in self._served.models:
            self._telemetry.serves(name)
        folder = str(Path(settings.config_file).parent) if settings.config_file else ""
        self._executors: list[tuple[ModelSettings, ProcessExecutor]] = [
            (model, self._executor(model, index, folder))
            for model in self._served.models.values()
            for index in range(executor_count(model, self._served.devices, this_machine()))
        ]
        self._speed = SpeedWatch(self._executors)
        observer = self._observer()
        self._breakers = breakers.of_executors(self._executors)
        self._watch = IdleWatch(store)
        self._shared = files_of(settings)
        self._loops = [
            ClaimLoop(
                model,
                executor,
                store,
                make_policy(model),
                codec,
                observer,
                batch_prefix=f"{self.worker_id}-{n}",
                revoked=worker_state.revoked,
                breaker=self._breakers[executor.name],
                follow_up=follow_up,
                watch=self._watch,
                payloads=payloads_of(settings, self._places, self._shared, model),
            )
            for n, (model, executor) in enumerate(self._executors)
        ]
        places = [(*each, loop) for each, loop in zip(self._executors, self._loops, strict=True)]
        self.reconciler = Reconciler(
            self._redis,
            self.worker_id,
            [(model, loop, executor) for model, executor, loop in places],
            make_policy,
            self._models_of_the_file,
        )
        for model, _, loop in places:
            loop.peers = [other for of, _, other in places if of is model and other is not loop]
        self.residency = make_residency(
            self._served,
            places,
            store,
            self._watch,
            partial(self._registry.is_elsewhere, self.worker_id),
            lambda: self._report.state == RUNNING and not self.reconciler.draining,
        )
        self._health = HealthWatch(
            WorkerReactions(places, self._go_offline),
            lambda: self.name,
            self.open_driver,
            settings.gpu_memory_percent / 100,
        )
        self._report = WorkerReport(
            self.worker_id,
            self._served,
            places,
            self._breakers,
            self.reconciler,
            self._node,
            self._seal.fingerprint if self._seal is not None else "",
            lambda: self._speed.state(self._health.state()),
            self.residency,
        )
        self._epochs = ModelEpochs(lines, self._executors)
        self._presence = Presence(self._redis, "worker", self._configured, lambda: self.name, self._pids)
        self._strays = ShardedStrays(lines, self.worker_id, self._held, time.monotonic)
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart_at = time.monotonic()
        self._liveness = Liveness(Path(settings.state_dir), "worker", self._heart_goes)

    def start(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        settle_heap()
        self._shared.open(self.worker_id)
        for each in (self._batch_log, self._ledger):
            if each is not None:
                each.start()
        try:
            self.reconciler.sync()
        except RedisError as error:
            logger.warning("cannot read which models are paused, and claim nothing until it can be read: %s", error)
        for line in shared_devices(self._served, self._executors):
            logger.warning("%s", line)
        for _, executor in self._executors:
            executor.start()
        self._watch.start()
        for loop in self._loops:
            loop.start()
        self.residency.start()
        self._heart.start()
        self._health.start()
        self._liveness.start()

    def stop_claiming(self) -> None:
        if self._report.state != OFFLINE:
            self._report.state = STOPPING
        self._news.set()
        self.reconciler.stop()
        self.residency.stop()
        for loop in self._loops:
            loop.stop_claiming()

    def stop(self, *, cold: bool = False) -> None:
        """Finish the batches in the executors (`cold`: not even those), give back the rest, and deregister.

        Safe to call twice.
        """
        if self._stop.is_set():
            return
        grace_s = self.give_back(cold=cold)
        in_parallel([partial(executor.stop, min(1.0, grace_s)) for _, executor in self._executors])
        self._stop.set()
        self._liveness.stop()
        self._news.set()
        self._heart.join(timeout=2 * BEAT_EVERY_S)
        self._shared.close()
        for each in (self._batch_log, self._ledger, self._tracer):
            if each is not None:
                each.stop()
        try:
            self._flusher.flush()
            self._registry.deregister(self.worker_id)
            self._presence.leave()
        except RedisError as error:
            logger.warning("could not deregister this worker; the others will deregister it: %s", error)

    def give_back(self, *, cold: bool) -> float:
        """End what is in the executors, as a part of `stop`; returns how long its batches had. Safe to call twice."""
        if self._grace_s is None:
            self.stop_claiming()
            # What a broken GPU has in hand does not end.
            is_short = cold or self._report.state == OFFLINE
            self._grace_s = COLD_GRACE_S if is_short else self._settings.graceful_timeout_s
            self._health.stop()
            self._watch.stop()
            in_parallel([partial(loop.stop, self._grace_s) for loop in self._loops])
        return self._grace_s

    def reset(self, model: str) -> dict[str, Any]:
        """Forget a model's faults and its usual speed; returns the faults. Raises KeyError, if it does not run here."""
        worst = breakers.reset(self._breakers, model)
        loops = [loop for (each, _), loop in zip(self._executors, self._loops, strict=True) if each.name == model]
        learned = [size for loop in loops if (size := loop.forget_safe_size()) is not None]
        self._speed.forget(model)
        return {"breaker": worst, "safe_size": min(learned, default=None)}

    def info(self) -> dict[str, Any]:
        row = msgspec.to_builtins(self._describe())
        in_hand = sum(loop.in_hand for loop in self._loops)
        pairs = zip(self._loops, self._executors, strict=True)
        learnt = {executor.name: shown(loop.state.learner) for loop, (_, executor) in pairs}
        return {**row, "in_hand": in_hand, "serving": self.reconciler.describe(), "learnt": learnt}

    def explain(self, name: str) -> dict[str, Any] | None:
        """The history of a request; raises RedisError."""
        return explain(self._places, self._settings.models, name)

    @property
    def name(self) -> str:
        """Celery's name of this worker; its id before Celery has one."""
        return self._node() or self.worker_id

    @property
    def models(self) -> Mapping[str, ModelSettings]:
        """The models that it serves, as they were configured when it started."""
        return self._served.models

    @property
    def redis(self) -> Redis:
        return self._redis

    def _executor(self, model: ModelSettings, index: int, folder: str) -> ProcessExecutor:
        kind = OnDemandExecutor if model.on_demand else ProcessExecutor
        return kind(
            model,
            index,
            folder=folder,
            devices=self._served.devices,
            max_output_bytes=self._settings.max_output_bytes,
            on_change=self._changed,
            on_loaded=partial(self._telemetry.loaded, model.name),
            on_replaced=partial(self._telemetry.replaced, model.name),
        )

    def _changed(self) -> None:
        self._news.set()
        self.residency.wake()

    def _observer(self) -> Observer:
        speed = self._speed if self._speed.has_devices else None
        others = [each for each in (self._batch_log, self._ledger, self._tracer, speed) if each is not None]
        return Observers(self._telemetry, *others) if others else self._telemetry

    def _models_of_the_file(self) -> Mapping[str, ModelSettings]:
        """The models of the file as it is now, for a reload."""
        return load_settings(config_file=self._settings.config_file or None).models

    def _go_offline(self, reason: str) -> None:
        """Give everything back, and end with status 1: whoever starts this worker may start it elsewhere."""
        logger.critical("this worker goes offline, and gives its requests back: %s", reason)
        self._report.state = OFFLINE
        self.stop_claiming()
        # Read by the consumer's loop (`celery.worker.state.maybe_shutdown`), which then stops the steps.
        worker_state.should_stop = EXIT_OFFLINE

    def _configured(self) -> Mapping[str, ModelSettings]:
        return {**self._settings.models, **self.reconciler.configured()}

    def _node(self) -> str:
        return getattr(self.consumer, "hostname", None) or ""

    def _dispatcher(self) -> Any:
        return getattr(self.consumer, "event_dispatcher", None)

    def _heart_goes(self) -> bool:
        return time.monotonic() - self._heart_at < _HEART_STANDS_STILL_S

    def _held(self) -> frozenset[str]:
        return frozenset().union(*(loop.held for loop in self._loops))

    def _beat(self) -> None:
        for beat in itertools.count():
            if self._stop.is_set():
                break
            self._heart_at = time.monotonic()
            self._news.clear()
            try:
                about = msgspec.json.encode(self._describe(measure=True))
                for overdue in self._registry.beat(self.worker_id, about, self._report.paces()):
                    self._registry.reclaim(*overdue)
                self._strays.look()
                self._shared.sweep()
                self._announce_loads()
                if self._registry.home_answers:
                    self._beat_at_home(beat)
            except RedisError as error:
                logger.warning("the heartbeat failed and will be repeated: %s", error)
            except Exception:
                logger.exception("the heartbeat failed and will be repeated")
            self._news.wait(BEAT_EVERY_S)

    def _beat_at_home(self, beat: int) -> None:
        """The part of the heartbeat that needs the Redis of the fleet."""
        self.reconciler.sync()
        self._presence.beat()
        for name in self._registry.wanted(self.residency.unloaded):
            self.residency.want(name)
        self._telemetry.tick()
        self._priorities.gather(self._served.models)
        if beat % IDLE_BEATS == 0 or self._watch.held < len(self._loops) - self.residency.without_seat:
            self._flusher.flush()

    def _describe(self, *, measure: bool = False) -> WorkerRow:
        return self._report.row(measure=measure)

    def _announce_loads(self) -> None:
        self._epochs.announce()

    def _pids(self) -> dict[str, int]:
        return {executor.name: executor.pid for _, executor in self._executors if executor.pid}

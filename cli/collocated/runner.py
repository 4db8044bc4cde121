"""The worker inside the frontend: the same executors, claim loops and heartbeat, over the queues in memory.

The process is patched by gevent, so what are threads in a worker are greenlets here. A request goes from the HTTP
connection through policy and claim to the executor's socket, and back, without another thread or a lock in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from gevent.threadpool import ThreadPool
from msgspec import structs
from redis import Redis

from batching.claim.lease import Entry
from batching.claim.registry import ModelThroughput
from batching.executor import ExecutorState
from batching.memory.store import MemoryStore
from batching.ports import NoFollowUp
from batching.request import Request
from config.settings import Settings
from config.tiers import TIERS
from tasks.client.collocated.admission import LocalAdmission
from tasks.fleet.registry_reader import QueueRow, WorkerRow
from tasks.observability.metrics import MetricsFlusher
from tasks.protocol.results import CeleryCodec
from workers.health.nvml import open_nvml
from workers.health.verdict import Reading
from workers.health.watch import Driver
from workers.report import OFFLINE
from workers.runner import WorkerRunner

_DRAINED_EVERY_S = 0.02


class LocalCodec(CeleryCodec):
    """Takes the requests of this process as they are; a message from Redis is read."""

    def decode(self, entry: Entry) -> Request:
        return super().decode(entry) if entry.request is None else entry.request

    def decode_fresh(self, entries: tuple[Entry, ...], now_ms: int) -> list[Request | None]:
        return [None] * len(entries)


class ThreadedDriver:
    """`workers.health.watch.Driver` that is asked in a thread of its own: a call into a library lets no other greenlet
    run, and a broken driver hangs.
    """

    def __init__(self, driver: Driver, thread: ThreadPool) -> None:
        self._driver = driver
        self._thread = thread

    def read(self, names: Collection[str]) -> list[Reading]:
        found: list[Reading] = self._thread.apply(self._driver.read, (names,))
        return found

    def close(self) -> None:
        self._thread.apply(self._driver.close)


def open_in_a_thread(open_driver: Callable[[], Driver | None] = open_nvml) -> Driver | None:
    """A driver, which is opened, asked and closed in the same thread; None: there is nothing to watch."""
    thread = ThreadPool(1)
    driver = thread.apply(open_driver)
    return None if driver is None else ThreadedDriver(driver, thread)


class CollocatedRunner(WorkerRunner):
    """A `WorkerRunner` over `store`. `admission` is set before the start; it measures what arrives."""

    codec_type = LocalCodec
    open_driver = staticmethod(open_in_a_thread)
    admission: LocalAdmission
    # Called once, when its GPUs have failed, with the reason.
    on_offline: Callable[[str], None]

    def __init__(self, settings: Settings, redis: Redis, store: MemoryStore) -> None:
        super().__init__(settings, NoFollowUp(), redis, store)
        self._store = store
        self._flusher = _FlushedByTheFrontend(redis)
        self._forgotten: dict[str, int] = {}

    def capacity(self, model: str) -> ModelThroughput:
        """The throughput of a model's executors."""
        return self._report.paces()[model]

    def drain(self, until: float) -> bool:
        """Wait until nothing waits any more, at most `until` (monotonic); returns whether that is so. Executors whose
        GPU has failed are not waited for.
        """
        while self._store.waiting:
            if time.monotonic() >= until or self._report.state == OFFLINE:
                return False
            time.sleep(_DRAINED_EVERY_S)
        return True

    def _go_offline(self, reason: str) -> None:
        super()._go_offline(reason)
        self.on_offline(reason)

    def _announce_loads(self) -> None:
        for model, executor in self._executors:
            starts = executor.starts
            if executor.state is ExecutorState.READY and self._forgotten.get(executor.name) != starts:
                self._store.questions.forget(model.name)
                self._forgotten[executor.name] = starts
        super()._announce_loads()

    def _describe(self, *, measure: bool = False) -> WorkerRow:
        return structs.replace(super()._describe(measure=measure), queues=tuple(self._queues()))

    def _queues(self) -> list[QueueRow]:
        rows = []
        for model in self._settings.models:
            view = self._store.look(model)
            queues = self._store.queues(model).tiers
            for tier, depth, queue in zip(TIERS, view.depths, queues, strict=True):
                head = queue.head.header if queue.head else None
                oldest_ms = max(0, view.now_ms - head.enqueued_ms) if head else 0
                arrivals = self.admission.arrival_rps(model, tier.rank)
                rows.append(QueueRow(model, tier.value, depth, oldest_ms, arrivals))
        return rows


class _FlushedByTheFrontend(MetricsFlusher):
    """The metrics of a process are sent once, by the frontend's own flusher."""

    def flush(self) -> None:
        pass

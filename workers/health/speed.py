"""The speed of a worker's executors, from the batches that they compute, and whether it is far below what it was.

    claim loop ──finished──▶ SpeedWatch ──a few batches a second──▶ Slowdown of each executor
                                 └──▶ with the state of the GPUs: what the heartbeat reports

Executors on the CPU are left out, and those that share their device with others of this worker: there the neighbours'
load decides. So are models behind URLs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from batching.ports import BatchInfo, NullObserver
from batching.request import Ok, Outcome, Request
from config.process.devices import Placement
from config.settings import ModelSettings
from workers.health.slowdown import Kind, Slowdown
from workers.health.verdict import Health
from workers.health.watch import State

logger = logging.getLogger(__name__)

# However short its batches are, an executor is looked at no more often.
EVERY_S = 0.25
# The clock's own inaccuracy: a batch that has waited for less had none before it.
_NO_WAIT_S = 1e-6


class WatchedExecutor(Protocol):
    """The part of `workers.executor.process_executor.ProcessExecutor` that the watch needs."""

    @property
    def name(self) -> str: ...
    @property
    def placement(self) -> Placement: ...
    @property
    def loaded(self) -> ModelSettings | None: ...
    @property
    def restarts(self) -> int: ...
    @property
    def overlaps(self) -> bool: ...


class _Watched:
    """One executor, with the model and the process that its speed is of."""

    __slots__ = ("executor", "loaded", "model", "next_at", "restarts", "slowdown")

    def __init__(self, model: str, executor: WatchedExecutor) -> None:
        self.model = model
        self.executor = executor
        self.loaded: ModelSettings | None = None
        self.restarts = 0
        self.next_at = 0.0
        self.slowdown = Slowdown()

    def follow(self) -> None:
        """Forget what another model or another process has shown."""
        loaded, restarts = self.executor.loaded, self.executor.restarts
        if loaded is not self.loaded:
            self.slowdown = Slowdown()
        elif restarts != self.restarts:
            self.slowdown = self.slowdown.restarted()
        self.loaded, self.restarts = loaded, restarts


class SpeedWatch(NullObserver):
    """`batching.ports.Observer` of one worker. The collectors of its executors write, the heartbeat reads."""

    def __init__(
        self, executors: Sequence[tuple[ModelSettings, WatchedExecutor]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        local = [(model, executor) for model, executor in executors if not model.is_remote]
        self._watched = {executor.name: _Watched(model.name, executor) for model, executor in local}

    @property
    def has_devices(self) -> bool:
        """Return whether there is an executor to watch. A worker of CPUs alone need not tell of its batches."""
        return any(each.executor.placement.device != "cpu" for each in self._watched.values())

    def finished(self, settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo) -> None:
        watched = self._watched.get(batch.executor)
        now = self._clock()
        if watched is None or now < watched.next_at:
            return
        watched.next_at = now + EVERY_S
        kind = _kind(settled, batch, overlaps=watched.executor.overlaps)
        if kind is None or not self._is_alone(watched.executor):
            return
        with self._lock:
            if watched.executor.loaded is None:
                # The process has just ended: the batch was its last one.
                return
            watched.follow()
            before = watched.slowdown.slow
            watched.slowdown = watched.slowdown.observe(kind, batch.size, batch.compute_s, now)
            after = watched.slowdown.slow
        if after and not before:
            logger.warning("this worker is degraded: %s %s", batch.executor, after)
        elif before and not after:
            logger.info("%s is as quick as before", batch.executor)

    def forget(self, model: str) -> None:
        """Take what comes next for usual: an operator has seen what there was."""
        with self._lock:
            for each in self._watched.values():
                if each.model == model:
                    each.slowdown = Slowdown()

    def state(self, gpus: State) -> State:
        """The state of the GPUs, with the executors that are slow."""
        found = [(name, each.slowdown.slow) for name, each in self._watched.items()]
        slow = [f"{name} {what}" for name, what in found if what is not None]
        if not slow:
            return gpus
        health = Health.DEGRADED if gpus.health is Health.HEALTHY else gpus.health
        return replace(gpus, health=health, reasons=(*gpus.reasons, *slow))

    def _is_alone(self, executor: WatchedExecutor) -> bool:
        """Return whether it has a device, and no other executor of this worker has the same."""
        mine = executor.placement
        return mine.device != "cpu" and not any(
            each.executor is not executor and each.executor.placement == mine for each in self._watched.values()
        )


def _kind(settled: Sequence[tuple[Request, Outcome]], batch: BatchInfo, *, overlaps: bool) -> Kind | None:
    """The kind of a batch; None for one that says nothing about the device: in parts, or not computed as a whole.

    Where stages overlap, neither does one with a neighbour on one side alone: its time depends on when that came.
    """
    beside = overlaps and batch.wait_s > _NO_WAIT_S
    if overlaps and beside is not batch.followed:
        return None
    outputs = [len(outcome.output) for _, outcome in settled if isinstance(outcome, Ok)]
    if len(outputs) != batch.size or batch.passes != 1 or batch.collapsed or batch.compute_s <= 0:
        return None
    inputs = [len(request.input) for request, _ in settled]
    return Kind.of(batch.size + batch.padding, max(inputs), sum(inputs), sum(outputs), beside=beside)

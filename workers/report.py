"""A worker's report of itself, with each heartbeat: its executors for people, their throughput for admission."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from batching.claim.loop import ClaimLoop
from batching.claim.registry import ModelThroughput, model_pace, speed
from batching.claim.shared_breaker import SharedBreaker
from batching.executor import ExecutorState
from config.model_files.pools import Assignment
from config.settings import ModelSettings
from tasks.fleet.registry_reader import ExecutorRow, GpuRow, OnDemandRow, WorkerRow
from tasks.observability.metrics import BUSY_SECONDS
from workers.executor.process_executor import ProcessExecutor
from workers.health.verdict import Health
from workers.health.watch import State
from workers.reconciler import Reconciler
from workers.residency.residency import Residency

RUNNING, STOPPING, OFFLINE = "running", "stopping", "offline"
# An executor with its model and its loop.
Place = tuple[ModelSettings, ProcessExecutor, ClaimLoop]


class WorkerReport:
    """The report of one worker.

    Args:
        served: its models and its pool.
        places: its executors.
        node: its name in Celery, once it has one.
        seal: identifies the key with which it checks frontends' messages.
        health: returns the last state of its GPUs, and of the speed of its executors.
        residency: its models that are loaded on demand.
    """

    def __init__(
        self,
        worker_id: str,
        served: Assignment,
        places: Sequence[Place],
        breakers: Mapping[str, SharedBreaker],
        reconciler: Reconciler,
        node: Callable[[], str],
        seal: str,
        health: Callable[[], State],
        residency: Residency,
    ) -> None:
        self.state = RUNNING
        self._worker_id = worker_id
        self._served = served
        self._places = places
        self._breakers = breakers
        self._reconciler = reconciler
        self._node = node
        self._seal = seal
        self._health = health
        self._residency = residency
        self._started_at = time.time()
        self._busy: dict[str, tuple[float, float]] = {}

    def row(self, *, measure: bool = False) -> WorkerRow:
        """The entry in the register. `measure`: with the busy time since the last such call."""
        rows = tuple(
            ExecutorRow(
                model.name,
                executor.name,
                executor.state.value,
                executor.error,
                self._busy_fraction(model, executor) if measure else 0.0,
                executor.batches,
                executor.restarts,
                executor.pid,
                self._breakers[executor.name].state.value,
                loop.state.safe_size,
                *speed(loop.state.pace, loop.state.safe_size or model.max_batch_size),
                device=str(executor.placement),
                in_flight=loop.in_hand,
                spare_pid=executor.spare.pid,
                pressed_size=loop.state.pressed_size,
                on_demand=self._on_demand(model.name) if model.on_demand else None,
            )
            for model, executor, loop in self._places
        )
        gpus = self._health()
        is_degraded = any(not each.is_served or each.breaker != "closed" for each in rows)
        return WorkerRow(
            self._worker_id,
            socket.gethostname(),
            os.getpid(),
            self._started_at,
            rows,
            self._shown_state(),
            node=self._node(),
            degraded=is_degraded or gpus.health is not Health.HEALTHY,
            seal=self._seal,
            pool=self._served.pool,
            health=gpus.health.value,
            reasons=gpus.reasons,
            gpus=tuple(
                GpuRow(each.device, each.utilization, each.memory_used, each.memory_total, each.temperature_c)
                for each in gpus.readings
            ),
        )

    def _on_demand(self, model: str) -> OnDemandRow:
        member, ready_in_s = self._residency.members[model], self._residency.ready_in_s(model)
        return OnDemandRow(
            member.stage.value,
            member.loads,
            round(member.load_s * 1000) or None,
            None if ready_in_s is None else round(ready_in_s * 1000),
            member.retry_in_ms(time.monotonic()),
        )

    def paces(self) -> dict[str, ModelThroughput]:
        """The throughput of each model's executors; none when the worker drains or stops."""
        running = self.state == RUNNING and not self._reconciler.draining
        mine: dict[str, list[Place]] = {name: [] for name in self._served.models}
        for place in self._places:
            mine[place[0].name].append(place)
        paces: dict[str, ModelThroughput] = {}
        for name, model in self._served.models.items():
            ready = sum(running and executor.state is ExecutorState.READY for _, executor, _ in mine[name])
            states = [loop.state for _, _, loop in mine[name]]
            safe = min((state.safe_size or model.max_batch_size for state in states), default=model.max_batch_size)
            paces[name] = model_pace(ready, [state.pace for state in states], safe)
        return paces

    def _shown_state(self) -> str:
        if self.state == RUNNING and self._reconciler.draining:
            return "draining" if any(loop.in_hand for _, _, loop in self._places) else "drained"
        return self.state

    def _busy_fraction(self, model: ModelSettings, executor: ProcessExecutor) -> float:
        now, busy = time.monotonic(), executor.busy_s
        then, before = self._busy.get(executor.name, (now, busy))
        self._busy[executor.name] = (now, busy)
        spent = max(0.0, busy - before)
        if spent:
            BUSY_SECONDS.labels(model.name, executor.name).inc(spent)
        return min(1.0, spent / (now - then)) if now > then else 0.0

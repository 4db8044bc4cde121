"""Builds the residency of one worker from its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from batching.claim.idle_watch import IdleWatch
from batching.claim.store import BatchStore
from config.model_files.pools import Assignment
from config.model_files.room import needs_of, room_for
from config.process.devices import gpu_of, sharing, this_machine
from config.schema import ModelSettings
from workers.executor.on_demand import OnDemandExecutor
from workers.executor.process_executor import ProcessExecutor
from workers.report import Place
from workers.residency.member import Member, UnloadedSeat
from workers.residency.residency import Residency


def make_residency(
    served: Assignment,
    places: Sequence[Place],
    store: BatchStore,
    watch: IdleWatch,
    elsewhere: Callable[[str], bool],
    is_open: Callable[[], bool],
) -> Residency:
    """The residency of the worker that serves `served` with these executors."""
    machine = this_machine()
    devices = {
        name: [gpu_of(executor.placement, machine) for of, executor, _ in places if of is model]
        for name, model in served.models.items()
    }
    needs = {name: needs_of(model, devices[name], served.max_resident) for name, model in served.models.items()}
    always = [needs[name] for name, model in served.models.items() if not model.on_demand]
    residency = Residency(
        room_for(always, {each for found in devices.values() for each in found}, served.max_resident),
        store,
        elsewhere,
        is_open,
    )
    for name, model in served.models.items():
        if model.on_demand:
            pairs = [(loop, cast("OnDemandExecutor", executor)) for of, executor, loop in places if of is model]
            residency.members[name] = Member(model, needs[name], pairs, UnloadedSeat(watch, name, residency.wake))
    return residency


def shared_devices(served: Assignment, executors: Sequence[tuple[ModelSettings, ProcessExecutor]]) -> list[str]:
    """A line for each executor that has no GPU of its own: two models on one GPU are usually intended, two executors of
    the same model seldom are.
    """
    return [
        line
        for model in served.models.values()
        # Devices that are named twice are meant so.
        if not model.is_remote and model.devices is None and served.devices is None
        for line in sharing({each.name: each.placement for of, each in executors if of is model})
    ]

"""A worker's reactions to the health of its GPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from config.process.devices import Placement, this_machine
from workers.report import Place

logger = logging.getLogger(__name__)


class WorkerReactions:
    """`workers.health.watch.Reactions` of one worker. `go_offline` is what its runner does then."""

    def __init__(self, places: Sequence[Place], go_offline: Callable[[str], None]) -> None:
        self._places = places
        self._offline = go_offline
        # How often each executor had been replaced, at the last look and at this one.
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def devices(self) -> frozenset[str]:
        """The GPUs of its executors. Called at the begin of each look."""
        self._before, self._now = self._now, {executor.name: executor.restarts for _, executor, _ in self._places}
        found = (_gpu(executor.placement) for model, executor, _ in self._places if not model.is_remote)
        return frozenset(each for each in found if each)

    def memory_is_full(self, names: frozenset[str]) -> None:
        """Claim half batches for executors on these GPUs, and whole ones on the others."""
        for model, executor, loop in self._places:
            full = _gpu(executor.placement) in names
            size = max(1, model.max_batch_size // 2) if full else None
            if size != loop.state.pressed_size:
                loop.state.pressed_size = size
                what = f"at most {size} requests, as its GPU's memory is nearly full" if full else "any size again"
                logger.warning("%s: batches have %s", executor.name, what)

    def replace(self, names: frozenset[str], reason: str) -> None:
        """Replace the processes on a GPU, unless one of them has been since the last look: then it was the culprit,
        which its worker has noticed first. Its neighbours have contexts of their own.
        """
        there = [executor for _, executor, _ in self._places if _gpu(executor.placement) in names]
        if all(executor.restarts == self._before.get(executor.name, executor.restarts) for executor in there):
            for executor in there:
                executor.condemn(reason)

    def go_offline(self, reason: str) -> None:
        self._offline(reason)


def _gpu(placement: Placement) -> str:
    """The GPU of an executor, as NVML can find it; empty for none."""
    if placement.visible is not None:
        return placement.visible
    _, mark, index = placement.device.partition("cuda:")
    if not mark or not index.isdigit():
        return ""
    gpus = this_machine().gpus
    return gpus[int(index)] if int(index) < len(gpus) else index

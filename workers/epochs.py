"""Starts a new epoch of a model after a load, so that cached answers from before are not given any more."""

from __future__ import annotations

from collections.abc import Sequence

from batching.claim.place_lines import PlaceLines
from batching.executor import ExecutorState
from config.settings import ModelSettings
from workers.executor.process_executor import ProcessExecutor


class ModelEpochs:
    """The epochs of the models of one worker, in all places: each has cached answers. For one thread."""

    def __init__(self, lines: PlaceLines, executors: Sequence[tuple[ModelSettings, ProcessExecutor]]) -> None:
        self._lines = lines
        self._executors = executors
        # How often an executor had started when a place was told.
        self._told: dict[tuple[str, int], int] = {}

    def announce(self) -> None:
        """Tell the places of new loads; one that does not answer is told later. Raises RedisError."""
        for model, executor in self._executors:
            starts = executor.starts
            if executor.state is not ExecutorState.READY:
                continue
            for number, place in enumerate(self._lines.places):
                if self._told.get((executor.name, number)) != starts and self._lines.is_there(number):
                    place.redis.incr(place.keys.edition(model.name))
                    self._told[executor.name, number] = starts

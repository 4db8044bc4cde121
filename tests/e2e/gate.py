"""A gate in front of the `moody` model, with which a test decides when its executors go on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.e2e.client import Api
from tests.waiting import wait_until

EXECUTORS = 2


class Gate:
    """The input `wish` is held, with its whole batch, until the gate is opened."""

    def __init__(self, path: Path, api: Api) -> None:
        self._path = path
        self._api = api
        self._held: list[str] = []
        self.wish = {"hold": str(path)}

    def occupy(self) -> None:
        """Hold every executor: later requests stay in the queue, unless they fill a batch."""
        for _ in range(EXECUTORS):
            task_id = self._api.later(self.wish, "moody")
            wait_until(partial(self._started, task_id), what="an executor is held")
            self._held.append(task_id)

    def open(self) -> None:
        """Let all go on; the requests that held the executors must succeed."""
        self._path.touch()
        held, self._held = self._held, []
        assert all(self._api.outcome(task_id)["status"] == "SUCCESS" for task_id in held)

    def _started(self, task_id: str) -> bool:
        return bool(self._api.result(task_id)["status"] == "STARTED")

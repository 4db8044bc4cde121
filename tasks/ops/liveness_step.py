"""The bootstep that writes the ops worker's beats for probes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import bootsteps

from tasks.fleet.liveness import Liveness


class LivenessStep(bootsteps.StartStopStep):
    def __init__(self, worker: Any, **_: Any) -> None:
        self._liveness = Liveness(Path(worker.app.bunch_settings.state_dir), "ops")

    def start(self, worker: Any) -> None:
        self._liveness.start()

    def stop(self, worker: Any) -> None:
        self._liveness.stop()

    # Celery calls only this on a worker that must stop at once.
    terminate = stop

"""The bootstep that runs the periodic sync in the ops worker."""

from __future__ import annotations

from typing import Any

from celery import bootsteps


class PeriodicSyncStep(bootsteps.StartStopStep):
    """Included only where the settings ask for a database; SQLAlchemy is not imported anywhere else."""

    def __init__(self, worker: Any, **_: Any) -> None:
        self._sync: Any = None

    def include_if(self, worker: Any) -> bool:
        needed: bool = worker.app.bunch_settings.needs_database
        return needed

    def start(self, worker: Any) -> None:
        from tasks.ops.sync import PeriodicSync

        self._sync = PeriodicSync(worker.app.bunch_settings)
        self._sync.start()

    def stop(self, worker: Any) -> None:
        if self._sync is not None:
            self._sync.stop()

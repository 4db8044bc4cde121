"""The bootstep that pushes results to their callback URLs from the ops worker."""

from __future__ import annotations

from typing import Any

from celery import bootsteps


class CallbackStep(bootsteps.StartStopStep):
    """Included only where `BUNCH_CALLBACK_HOSTS` names a host."""

    def __init__(self, worker: Any, **_: Any) -> None:
        self._sender: Any = None

    def include_if(self, worker: Any) -> bool:
        return bool(worker.app.bunch_settings.callback_hosts)

    def start(self, worker: Any) -> None:
        from config.shards import open_places
        from tasks.callbacks.sender import Sender

        settings = worker.app.bunch_settings
        self._sender = Sender(settings, open_places(settings))
        self._sender.start()

    def stop(self, worker: Any) -> None:
        if self._sender is not None:
            self._sender.stop()

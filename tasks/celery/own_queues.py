"""Which queues a worker consumes from: its own, whatever it is told.

    celery worker -Q …            a queue that it cannot serve: the worker ends at once, and says why
    control add_consumer …        refused; without a destination it reaches every worker, the ops worker too
    control cancel_consumer …     of what it does not consume from: refused, as there is nothing to cancel

A worker answers whatever it takes from a queue that is not its own with `NotRegistered`, or leaves it lying.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from celery import bootsteps
from celery.worker import control
from celery.worker.control import Panel

Reply = dict[str, Any]


class OwnQueuesStep(bootsteps.Step):
    """Of the worker's blueprint. `app.bunch_queues` has the names that it may consume from."""

    def create(self, worker: Any) -> None:
        own = worker.app.bunch_queues
        others = sorted(set(worker.app.amqp.queues.consume_from) - set(own))
        if others:
            # As `workers.celery.pools` does: whatever else is raised here, Celery prints with a traceback.
            raise SystemExit(f"this worker cannot serve {', '.join(others)}; start it on {_names(own)}, or without -Q")
        Panel.data["add_consumer"] = _if_own(control.add_consumer, "cannot serve")
        Panel.data["cancel_consumer"] = _if_own(control.cancel_consumer, "does not consume from")


def _if_own(command: Callable[..., Reply], otherwise: str) -> Callable[..., Reply]:
    def guarded(state: Any, queue: str, **options: Any) -> Reply:
        own = state.app.bunch_queues
        if queue not in own:
            return {"error": f"this worker {otherwise} {queue!r}; its own queues are {_names(own)}"}
        return command(state, queue, **options)

    return guarded


def _names(queues: Collection[str]) -> str:
    return ", ".join(sorted(queues))

"""Workers consume from their own queues only, whatever they are told.

    celery worker -Q …            a queue that it cannot serve: the worker ends at once and says why
    control add_consumer …        refused; without a destination it reaches every worker, also the ops worker
    control cancel_consumer …     refused for a queue that the worker does not consume from

A worker would answer a message from a foreign queue with `NotRegistered`, or leave it unacknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from celery import bootsteps
from celery.worker import control
from celery.worker.control import Panel

Reply = dict[str, Any]


class OwnQueuesStep(bootsteps.Step):
    """A step of the worker's blueprint. `app.bunch_queues` has the names that the worker may consume from."""

    def create(self, worker: Any) -> None:
        own = worker.app.bunch_queues
        others = sorted(set(worker.app.amqp.queues.consume_from) - set(own))
        if others:
            # As in `workers.celery.pools`: Celery prints any other exception from here with a traceback.
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

"""The consumer bootstep: inside a Celery worker, batches are claimed in bulk instead of one message at a time.

It runs after `Tasks`, so the queues are declared and visible to `inspect active_queues` and Flower. Then it removes
kombu's credit (`qos.can_consume`, the hook that `worker_disable_prefetch` also uses), so that kombu never pops from
them.

After a broker reconnect Celery calls `start` again on this object, with a new consumer and channel. The patch is
applied again; the claim loops have their own connections and go on.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Protocol

from celery import bootsteps
from celery.worker import state as worker_state
from kombu.transport.redis import MultiChannelPoller

logger = logging.getLogger(__name__)


class BatchRunner(Protocol):
    """The part of a runner that the step uses; `workers.runner.WorkerRunner` is the real one."""

    def start(self) -> None: ...

    def stop_claiming(self) -> None: ...

    def stop(self, *, cold: bool = False) -> None:
        """Stop. `cold`: give batches back instead of finishing them."""

    def info(self) -> dict[str, Any]: ...


class BatchingStep(bootsteps.StartStopStep):
    """Owns the popping of the batch queues. The runner is set by the composition root before the worker is built."""

    requires: ClassVar[set[str]] = {"celery.worker.consumer.tasks:Tasks"}

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self.runner: BatchRunner = consumer.app.bunch_runner
        self._started = False

    def start(self, consumer: Any) -> None:
        consumer.task_consumer.channel.qos.can_consume = _no_credit
        _forget_lost_connections(consumer)
        self.runner.consumer = consumer  # type: ignore[attr-defined]
        if not self._started:
            self._started = True
            self.runner.start()

    def stop(self, consumer: Any) -> None:
        """Also called when the broker connection is lost; then the loops keep their work, and nothing stops."""
        if self._stopping(consumer):
            self.shutdown(consumer)

    def close(self, consumer: Any) -> None:
        """Called first at a shutdown: claim nothing more."""
        self.runner.stop_claiming()

    def shutdown(self, consumer: Any) -> None:
        # Without a broker, a worker can be told to stop before it ever started.
        if self._started:
            self.runner.stop(cold=_is_cold())

    def info(self, consumer: Any) -> dict[str, Any]:
        """Statistics under one key, since `inspect stats` merges every step's dictionary into one."""
        return {"bunch": self.runner.info()}

    @staticmethod
    def _stopping(consumer: Any) -> bool:
        return consumer.blueprint.state in {bootsteps.CLOSE, bootsteps.TERMINATE}


def _forget_lost_connections(consumer: Any) -> None:
    """Remove what kombu's Redis transport leaves in the event loop when its connection is lost: a callback for each
    turn, which keeps the transport with all of its buffers. It is never removed (kombu 5.7).
    """
    if consumer.hub is None:
        return
    ours = getattr(consumer.connection.transport, "cycle", None)
    for tick in tuple(consumer.hub.on_tick):
        cells = [cell.cell_contents for cell in getattr(tick, "__closure__", None) or ()]
        pollers = [each for each in cells if isinstance(each, MultiChannelPoller)]
        if pollers and ours not in pollers:
            consumer.hub.on_tick.discard(tick)


def _is_cold() -> bool:
    """Return whether this is a cold shutdown: SIGQUIT, or a second Ctrl-C. Celery never calls `terminate` of consumer
    steps.
    """
    return worker_state.should_terminate not in {None, False}


def _no_credit() -> bool:
    return False

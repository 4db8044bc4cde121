"""The result backend of a frontend process: `AsyncResult(id).get()` through the reply router.

Select it with `result_backend="tasks.backend:BunchBackend+redis://…"` and give the app a client
(`app.bunch_client`). Results are stored and read exactly as Celery's Redis backend does it; only the *waiting* is
replaced, because Celery's subscribes per task, wakes every waiter at each message, and does not survive a long outage
(`celery.backends.asynchronous`). Without a client (a process that is no frontend) Celery's own way is left in place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from celery.backends.redis import RedisBackend
from celery.exceptions import TimeoutError as CeleryTimeoutError
from redis import BlockingConnectionPool

if TYPE_CHECKING:
    from celery.result import AsyncResult, ResultSet

    from tasks.router import Router

# `get()` without a timeout still ends: no result is kept longer than this.
_LONGEST_WAIT_S = 24 * 3600.0
_LONGEST_WAIT_FOR_CONNECTION_S = 5.0


class BunchBackend(RedisBackend):
    """Celery's Redis backend whose waiters are the router's."""

    @property
    def _router(self) -> Router | None:
        client = getattr(self.app, "bunch_client", None)
        return client.router if client is not None else None

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Celery subscribes here for every task that is sent, waited for or not."""
        if self._router is None:
            super().on_task_call(producer, task_id)

    def add_pending_result(self, result: AsyncResult, weak: bool = False, start_drainer: bool = True) -> AsyncResult:
        """Nothing is pending before somebody waits."""
        if self._router is None:
            return super().add_pending_result(result, weak=weak, start_drainer=start_drainer)
        return result

    def add_pending_results(self, results: Any, weak: bool = False) -> None:
        if self._router is None:
            super().add_pending_results(results, weak=weak)

    def remove_pending_result(self, result: AsyncResult) -> AsyncResult:
        if self._router is None:
            return super().remove_pending_result(result)
        return result

    def wait_for_pending(
        self, result: AsyncResult, callback: Any = None, propagate: bool = True, **options: Any
    ) -> Any:
        """Block this greenlet until the task has finished; raises what it raised.

        Raises:
            celery.exceptions.TimeoutError: after `timeout` seconds.
        """
        if self._router is None:
            return super().wait_for_pending(result, callback=callback, propagate=propagate, **options)
        timeout = options.get("timeout")
        self._await(result, math.inf if timeout is None else timeout)
        return result.maybe_throw(callback=callback, propagate=propagate)

    def iter_native(self, result: ResultSet, timeout: float | None = None, **options: Any) -> Iterator[tuple[str, Any]]:
        """Each result of a group as `(id, meta)`, in the group's order; `timeout` is for all of them together."""
        if self._router is None:
            yield from super().iter_native(result, timeout=timeout, **options)
            return
        until = math.inf if timeout is None else time.monotonic() + timeout
        for each in result.results:
            if not hasattr(each, "_cache"):
                # A group in the group: Celery waits for its members when it is told them.
                yield each.id, each.children
                continue
            self._await(each, until - time.monotonic())
            yield each.id, self.get_task_meta(each.id)

    def _get_pool(self, **parameters: Any) -> BlockingConnectionPool:
        """Greenlets wait for a free connection: the plain pool fails whoever comes when all are in use."""
        return BlockingConnectionPool(  # type: ignore[no-untyped-call]
            timeout=_LONGEST_WAIT_FOR_CONNECTION_S, **parameters
        )

    def _await(self, result: AsyncResult, timeout_s: float) -> None:
        router = self._router
        assert router is not None
        if not result.ready():
            pending = router.watch(result.id, min(timeout_s, _LONGEST_WAIT_S))
            try:
                pending.wait()
            finally:
                router.forget(pending)
            if not result.ready():
                raise CeleryTimeoutError("The operation timed out.")

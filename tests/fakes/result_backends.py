"""A Celery client and a worker's result backend on one server, for tests of result backends."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

from celery import Celery
from celery.result import AsyncResult, GroupResult
from redis import Redis

from tests.valkey import PrivateValkey
from tests.waiting import wait_until


class Both:
    """A client with the backend in question, and a worker's backend: Celery's own."""

    def __init__(self, url: str, redis: Redis, backend: str) -> None:
        self.url = url
        self.redis = redis
        self.backend = backend
        self.worker = Celery("worker", backend=url, set_as_current=False)
        self.apps: list[Celery] = [self.worker]
        # Else Celery's own is one for each thread, and a group that is joined in another thread than made never comes.
        self.app = self.make_app(result_backend_thread_safe=True)
        self.threads = ThreadPoolExecutor(8)
        # Other tests of this process have had the server before.
        self._others = frozenset(self._channels())

    def make_app(self, **settings: Any) -> Celery:
        app = Celery("client", broker=self.url, backend=f"{self.backend}+{self.url}", set_as_current=False)
        app.conf.update(settings)
        self.apps.append(app)
        return app

    def result(self, task_id: str = "") -> AsyncResult:
        return AsyncResult(task_id or uuid.uuid4().hex, app=self.app)

    def done(self, task_id: str, value: Any = None, state: str = "SUCCESS", **more: Any) -> None:
        self.worker.backend.store_result(task_id, value, state, **more)

    def group(self, size: int) -> GroupResult:
        return GroupResult(uuid.uuid4().hex, [self.result() for _ in range(size)], app=self.app)

    def start(self, call: Callable[[], Any], *awaited: str) -> Future[Any]:
        """In a thread; returns once it listens for all of `awaited`."""
        future = self.threads.submit(call)
        wait_until(lambda: set(awaited) <= set(self.waited_for()) or future.done(), "it listens")
        return future

    def waited_for(self) -> list[str]:
        return [
            each.decode().removeprefix("celery-task-meta-") for each in self._channels() if each not in self._others
        ]

    def _channels(self) -> list[bytes]:
        return cast("list[bytes]", self.redis.pubsub_channels())

    def close(self) -> None:
        self.threads.shutdown()
        for app in self.apps:
            consumer = app.backend.result_consumer
            consumer.stop()
            consumer.subscribed_to.clear()
            app.close()


@contextmanager
def both_of(valkey: PrivateValkey, redis: Redis, backend: str) -> Iterator[Both]:
    both = Both(valkey.url, redis, backend)
    try:
        yield both
    finally:
        both.close()

"""The frontend's services in a thread with gevent's loop, called from asyncio.

    asyncio (grpc.aio), main thread                        gevent, thread "services"
      handler ──run(work)──▶ run_callback_threadsafe ─────▶ greenlet: identify, submit, wait
         ▲                                                     │
         └──────────────── call_soon_threadsafe ◀──────────────┘

Client, router, outbox and identity are the same as in the web role, so every rule is the same; they know gevent only.
A thread pool over them would need a thread for each waiting request. So sockets are gevent's in the whole process
(`webapp.grpc.__main__`), which blocks only the thread whose loop has others to run; asyncio's own are set not to block.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
from gevent import get_hub
from gevent.event import Event
from gevent.queue import LifoQueue

from config.settings import Settings
from config.shards import open_places
from webapp.services import Services

Outcome = TypeVar("Outcome")


class ServiceThread:
    """The services of one process, for coroutines. `start` returns once they have started."""

    services: Services

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = threading.Thread(target=self._run, name="services", daemon=True)
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._hub: Any = None
        self._over: Any = None

    def start(self) -> None:
        """Start the thread. Raises whatever prevented the services from starting."""
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop the services, and wait for their thread."""
        self._hub.loop.run_callback_threadsafe(self._over.set)
        self._thread.join()

    def refuse(self) -> None:
        """Refuse all waiting callers: their answers must still reach them."""
        self._hub.loop.run_callback_threadsafe(self.services.client.refuse)

    async def run(self, work: Callable[[], Outcome]) -> Outcome:
        """Run `work` in a greenlet; raises what it raises. If the coroutine is cancelled, `work` goes on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()

        def settle(outcome: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(outcome)
            else:
                future.set_exception(error)

        def greenlet() -> None:
            try:
                outcome, error = work(), None
            except BaseException as why:  # noqa: BLE001 - it is raised where somebody waits for it
                outcome, error = None, why
            loop.call_soon_threadsafe(settle, outcome, error)

        self._hub.loop.run_callback_threadsafe(gevent.spawn, greenlet)
        return await future

    def _run(self) -> None:
        from webapp.app import create_app, make_services

        try:
            self._hub = get_hub()
            self._over = Event()
            # A plain queue would block the thread, and with it those who would give a connection back.
            places = open_places(self._settings, queue_class=LifoQueue)
            app = create_app(make_services(self._settings, places))
            self.services = app.services
            app.start("grpc")
        except BaseException as error:  # noqa: BLE001 - `start` raises it
            self._error = error
            self._started.set()
            return
        self._started.set()
        self._over.wait()
        app.stop()

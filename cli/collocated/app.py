"""The composition root of collocated mode: `gunicorn -c config/gunicorn.py cli.collocated.app:application`.

HTTP ──▶ LocalClient ──▶ MemoryStore ◀── claim loops ──socket pair──▶ executor processes
            ▲                 │
            └────replies──────┘          Redis: keys, metrics, history, desired state, dead letters; never a request
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import gevent
from gevent.event import Event
from redis import Redis
from redis.exceptions import RedisError

from batching.claim.store import Keep
from batching.memory.store import MemoryStore
from cli.collocated.leftovers import Leftovers
from cli.collocated.runner import CollocatedRunner
from config.process.memory import machine_memory
from config.redis import connect
from config.settings import Settings, load_settings
from config.shards import Places, only_home
from tasks.client.collocated.client import LocalClient, LocalClientLimit
from tasks.errors import ModelUnavailable
from tasks.protocol.disclosure import Disclosure
from tasks.protocol.outgoing import Outgoing
from tasks.protocol.results import CeleryCodec
from tasks.protocol.seal import seal_of
from webapp.app import BunchApp, create_app, make_services

logger = logging.getLogger(__name__)

# As for the embedded server: the rest is for models.
_SHARE_OF_MEMORY = 0.25
# How long before the end of the graceful timeout what is not finished goes to Redis.
_LAST_MOMENT_S = 2.0
_SYNC_EVERY_S = 1.0
# For how long a stop waits for an exchange that is under way; it then has the same to say to Redis.
_LAST_SYNC_S = 0.5


class CollocatedApp(BunchApp):
    """The frontend with its executors. `runner` and `leftovers` are set by the composition root."""

    runner: CollocatedRunner
    leftovers: Leftovers
    # Makes the server stop in order and exit with status 1. Set by gunicorn's configuration.
    end_in_failure: Callable[[], None]

    def start(self, role: str = "web") -> None:
        super().start(role)
        self._stop_by = float("inf")
        try:
            self.leftovers.sync()
        except RedisError as error:
            logger.warning("could not read what an earlier process left in Redis; trying again: %s", error)
        self.runner.on_offline = self._fail
        self.runner.start()
        self._ending = Event()
        self._syncing = gevent.spawn(self._sync)

    def _sync(self) -> None:
        while not self._ending.wait(_SYNC_EVERY_S):
            try:
                self.leftovers.sync()
            except RedisError as error:
                logger.debug("could not exchange requests and dead letters with Redis; trying again: %s", error)
            except Exception:
                logger.exception("could not exchange requests and dead letters with Redis; trying again")

    def _fail(self, reason: str) -> None:
        """The GPUs have failed: nobody waits for them in vain, and whoever starts this server may start it anew."""
        unavailable = f"this server ends, as its hardware has failed, and is started anew: {reason}"
        self.services.client.refuse(partial(ModelUnavailable, unavailable))
        self.end_in_failure()

    def stopping(self) -> None:
        self._stop_by = time.monotonic() + self.services.settings.graceful_timeout_s - _LAST_MOMENT_S

    def stop(self) -> None:
        """The connections are closed. Finish the requests that are polled for, and move the rest to Redis."""
        self._ending.set()
        in_time = self.runner.drain(min(self._stop_by, time.monotonic() + self.services.settings.graceful_timeout_s))
        self.runner.give_back(cold=not in_time)
        # Not killed: what it has just read from Redis would be lost.
        self._syncing.join(_LAST_SYNC_S)
        # Before anything else ends: gunicorn's master, and whoever stops the container, wait for so long and no longer.
        try:
            self.leftovers.save()
        except RedisError as error:
            logger.error("could not save what is not finished to Redis; it is lost: %s", error)
        self.runner.stop(cold=not in_time)
        try:
            if self.services.settings.metrics == "on":
                self.services.tallies.hand_over()
                self._flusher.flush()
        except RedisError as error:
            logger.warning("the last metrics of this process are lost: %s", error)
        super().stop()


def make_application(settings: Settings, redis: Redis | None = None) -> CollocatedApp:
    """Make the application of the one process; start it in that process, after gevent has patched it."""
    redis = redis or connect(settings.redis_url)
    keep = Keep(answer_bytes=settings.cache_max_bytes)
    store = MemoryStore(ageing_s=settings.ageing_ms / 1000, keep=keep, lock=nullcontext())
    runner = CollocatedRunner(settings, redis, store)
    most_bytes = settings.redis_max_memory_bytes or int(machine_memory() * _SHARE_OF_MEMORY)

    def make_client(settings: Settings, places: Places, on_answered: Callable[[Outgoing], None]) -> LocalClient:
        return LocalClient(settings, places.home.redis, store, runner.capacity, most_bytes, on_answered)

    services = make_services(settings, only_home(redis), make_client=make_client)
    client: Any = services.client
    runner.admission = client.admission
    services.clients = LocalClientLimit(settings, redis, client.admission.quotas)
    app = CollocatedApp("webapp", static_folder=None)
    create_app(services, app)
    app.runner = runner
    disclosure = Disclosure(settings.error_detail, settings.auth)
    codec = CeleryCodec(settings.result_ttl_ms, disclosure, settings.largest_input_bytes, seal_of(settings))
    app.leftovers = Leftovers(redis, store, codec, settings.models, runner.worker_id, settings.lease_ttl_s)
    return app


def __getattr__(name: str) -> CollocatedApp:
    """Make `cli.collocated.app:application` when gunicorn asks for it."""
    if name == "application":
        app = globals()["application"] = make_application(load_settings())
        return app
    raise AttributeError(name)

"""The bootstep that enters the ops worker into the register of processes."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

from celery import bootsteps
from redis.exceptions import RedisError

from config.redis import connect
from tasks.fleet import left_shards
from tasks.fleet.process_register import BEAT_EVERY_S, Presence

logger = logging.getLogger(__name__)


class PresenceStep(bootsteps.StartStopStep):
    """Beats from a thread of its own, so that a database that hangs does not make this process look gone."""

    def __init__(self, worker: Any, **_: Any) -> None:
        self._settings = settings = worker.app.bunch_settings
        self._presence = Presence(
            connect(settings.home_url), "ops", lambda: settings.models, lambda: worker.hostname or ""
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def start(self, worker: Any) -> None:
        self._thread.start()

    def stop(self, worker: Any) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(BEAT_EVERY_S)
        with contextlib.suppress(RedisError):
            self._presence.leave()

    def _run(self) -> None:
        # The embedded server has started by now, unlike at `check`.
        if text := left_shards.finding(self._settings, served=False):
            logger.error("BUNCH_SHARDS = %d: %s", self._settings.shard_count, text)
        while True:
            with contextlib.suppress(RedisError):
                self._presence.beat()
            if self._stop.wait(BEAT_EVERY_S):
                return

"""The ops worker's periodic sync: changed API keys to the frontends, the ledger to the database.

    database ──keys──▶ Redis        every second, if they have changed
    Redis ──ledger──▶ database      every second, until the stream is empty
    database ──rows past their age──▶ nowhere

Several ops workers may do it at once. What fails is retried; no request waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from redis import Redis
from redis.exceptions import RedisError

from config.redis import connect
from config.settings import Settings
from tasks.accounts.key_table import KeyTableStore
from tasks.accounts.ledger import LedgerStream
from tasks.accounts.store.engine import make_engine, migrate
from tasks.accounts.store.errors import StoreError
from tasks.accounts.store.keys import KeyStore
from tasks.accounts.store.ledger import LedgerStore
from tasks.observability import metrics

logger = logging.getLogger(__name__)

EVERY_S = 1.0
LONGEST_PAUSE_S = 5.0
RETENTION_EVERY_S = 600.0
# At most twenty thousand rows, in one transaction.
_ENTRIES_AT_ONCE = 40
_DAY_MS = 86_400_000


class PeriodicSync:
    """Runs each part of the sync in a thread from `start` on. `now` gives epoch seconds."""

    def __init__(self, settings: Settings, redis: Redis | None = None, now: Callable[[], float] = time.time) -> None:
        redis = redis or connect(settings.home_url)
        self._settings = settings
        self._now = now
        self._engine = make_engine(settings)
        self._migrated = False
        self._keys = KeyStore(self._engine)
        self._table = KeyTableStore(redis)
        self._stream = LedgerStream(redis)
        self._ledger = LedgerStore(self._engine)
        self._flusher = metrics.MetricsFlusher(redis)
        self._tidied_at = float("-inf")
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        sync = [self.publish_keys] if self._settings.takes_keys else []
        if self._settings.keeps_ledger:
            sync.append(self.keep_ledger)
        self._threads = [
            threading.Thread(target=self._repeat, args=(job,), name=job.__name__, daemon=True) for job in sync
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * LONGEST_PAUSE_S)
        self._engine.dispose()

    def publish_keys(self) -> None:
        """Write the keys to Redis if it has an older version. Raises StoreError, RedisError."""
        if self._keys.version() != self._table.version():
            version, keys = self._keys.usable(datetime.fromtimestamp(self._now(), UTC))
            if self._table.publish(version, keys):
                logger.info("published %d API keys", len(keys))

    def keep_ledger(self) -> None:
        """Move the stream's rows into the database, and delete rows past their age. Raises StoreError, RedisError."""
        while not self._stop.is_set():
            entries = self._stream.oldest(_ENTRIES_AT_ONCE)
            if not entries:
                break
            rows = [row for entry in entries for row in entry.rows]
            refused = self._ledger.write(rows)
            self._stream.forget(entries)
            metrics.LEDGER_ROWS.inc(len(rows) - refused)
            if refused:
                metrics.LEDGER_DROPPED.labels("refused").inc(refused)
        self._flusher.flush()
        if time.monotonic() - self._tidied_at >= RETENTION_EVERY_S:
            self.forget_old()
            self._tidied_at = time.monotonic()

    def forget_old(self) -> None:
        """Delete rows past their age. Raises StoreError."""
        before_ms = int(self._now() * 1000) - self._settings.ledger_retention_days * _DAY_MS
        while self._ledger.delete_before(before_ms) and not self._stop.is_set():
            pass

    def _repeat(self, job: Callable[[], None]) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            try:
                if not self._migrated:
                    migrate(self._engine)
                    self._migrated = True
                job()
            except (StoreError, RedisError) as error:
                if pause_s <= EVERY_S:
                    logger.warning("%s failed and will be retried: %s", job.__name__, error)
                pause_s = min(LONGEST_PAUSE_S, max(EVERY_S, pause_s * 2))
            except Exception:
                # Whatever failed: the next round must follow.
                logger.exception("%s failed and will be retried", job.__name__)
                pause_s = LONGEST_PAUSE_S
            else:
                pause_s = EVERY_S

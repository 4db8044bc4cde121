"""This process's copy of the API keys: a greenlet refreshes it, and requests look it up without leaving the process.

While Redis is away the last copy stays valid: nothing can be queued then, but a model in direct mode goes on serving
its callers. Revocations arrive when Redis is back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import time

import gevent
import msgspec
from redis.exceptions import RedisError

from tasks.accounts.api_keys import NOBODY, ApiKey, split_key
from tasks.accounts.key_table import KeyTable, KeyTableStore
from tasks.errors import BackendUnavailable
from tasks.protocol.caller import Caller

logger = logging.getLogger(__name__)

# With the ops worker's second between database and Redis, a revocation is in force everywhere within two seconds.
POLL_EVERY_S = 0.5
# A key can be written in many ways, since any word may stand for its tier.
MAX_REMEMBERED = 10_000


class KeyRing:
    """The key ring. `clock` gives epoch seconds, by which keys expire."""

    def __init__(self, store: KeyTableStore, clock: Callable[[], float] = time) -> None:
        self._store = store
        self._clock = clock
        self._callers: dict[str, tuple[ApiKey, Caller]] = {}
        # The credentials accepted since the table was read, as they were sent: checking form, hash and comparison costs
        # a tenth of the whole request. Python's string hash is keyed, so the time of a lookup tells nothing.
        self._opened: dict[str, tuple[ApiKey, Caller]] = {}
        self._version = ""
        self._greenlet: gevent.Greenlet[..., None] | None = None

    def start(self) -> None:
        self._refresh()
        self._greenlet = gevent.spawn(self._poll)

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill()

    @property
    def loaded(self) -> bool:
        return bool(self._version)

    def find(self, text: str) -> Caller | None:
        """The caller of key `text`; None if it is invalid, unknown, expired or revoked, in the same time for each.

        Raises:
            BackendUnavailable: no table was ever read, so no key can be checked.
        """
        known = self._opened.get(text) or self._open(text)
        if known is None:
            return None
        key, caller = known
        return None if key.expires_at and key.expires_at <= self._clock() else caller

    def take(self, table: KeyTable) -> None:
        """Replace the keys that are valid."""
        self._callers = {key.id: (key, key.caller()) for key in table.keys.values()}
        self._version = table.version
        self._opened = {}

    def _open(self, text: str) -> tuple[ApiKey, Caller] | None:
        parts = split_key(text)
        if parts is None:
            return None
        if not self._version:
            raise BackendUnavailable("the API keys are not loaded yet; try again shortly")
        key_id, secret = parts
        key, caller = self._callers.get(key_id, (NOBODY, None))
        if not key.opens_with(secret) or caller is None:
            return None
        if len(self._opened) >= MAX_REMEMBERED:
            self._opened.clear()
        self._opened[text] = known = (key, caller)
        return known

    def _poll(self) -> None:
        while True:
            gevent.sleep(POLL_EVERY_S)
            self._refresh()

    def _refresh(self) -> None:
        try:
            # An empty version means that Redis lost the table: keep the copy until the ops worker publishes it again.
            version = self._store.version()
            if version and version != self._version:
                self.take(self._store.read())
        except (RedisError, msgspec.MsgspecError) as error:
            logger.debug("could not refresh the API keys; the known ones stay valid: %s", error)
        except Exception:
            logger.exception("could not refresh the API keys; the known ones stay valid")

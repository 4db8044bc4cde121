"""The rate limit of an owner's clients, each named by the owner: `client_id`, `BUNCH_CLIENT_RPM`.

It is part of the owner's own limits: one client that sends too much must not use up what the others need. It keeps no
strangers out, since the caller chooses the name. It costs a call to Redis, for requests with a `client_id` only.
"""

from __future__ import annotations

import hashlib
import logging
from typing import cast

from redis import Redis
from redis.exceptions import RedisError

from batching.policy import Gcra, Shed
from config.keys import Shard
from config.settings import Settings
from tasks.errors import RateLimited
from tasks.script_args import CLIENT, ClientArgs, QuotaKeys

logger = logging.getLogger(__name__)


class ClientLimit:
    """The limit over all frontends together."""

    def __init__(self, settings: Settings, redis: Redis, shard: Shard | None = None) -> None:
        self._rpm = settings.client_rpm
        self._burst = max(1, self._rpm * settings.burst_ms // 60_000)
        self._keys = shard or Shard()
        self._take = redis.register_script(CLIENT.text)

    def refusal(self, owner: str, client_id: str, count: int = 1) -> RateLimited | None:
        """Count `count` requests of a client, at most a burst of them. Without a name there is no limit."""
        if not client_id or not self._rpm:
            return None
        name = hashlib.sha256(f"{owner}\0{client_id}".encode()).hexdigest()[:24]
        interval_us = Gcra.per_minute(self._rpm, self._burst).interval_us
        try:
            taken = self._take(
                keys=QuotaKeys(quota=self._keys.client_quota(name)),
                args=ClientArgs(interval_us=interval_us, burst=self._burst, requests=min(count, self._burst)),
            )
        except RedisError as error:
            # Then nothing can be queued, and the queue itself reports that.
            logger.debug("could not check the rate limit of a client; its request is let in: %s", error)
            return None
        allowed, retry_us, remaining, whole_us = cast("list[int]", taken)
        if allowed:
            return None
        message = f"each client is limited to {self._rpm} requests a minute, {self._burst} of them at once; slow down"
        limits = (self._rpm, self._burst, remaining, whole_us / 1e6)
        return RateLimited(message, retry_us / 1e6, Shed.CLIENT.value, limits)

"""How often one of an owner's clients may ask, by the name that the owner gives it: `client_id`, `BUNCH_CLIENT_RPM`.

A share of the owner's own limits, so that one of its clients that runs wild does not use up what the others need; not
for keeping strangers out, since whoever asks chooses the name. It costs a call to Redis, of such requests alone.
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
    """Of all frontends together."""

    def __init__(self, settings: Settings, redis: Redis, shard: Shard | None = None) -> None:
        self._rpm = settings.client_rpm
        self._burst = max(1, self._rpm * settings.burst_ms // 60_000)
        self._keys = shard or Shard()
        self._take = redis.register_script(CLIENT.text)

    def refusal(self, owner: str, client_id: str, count: int = 1) -> RateLimited | None:
        """Count `count` requests of a client, which has no limit without a name; more than a burst take all of it."""
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
            # Nothing can be queued then, and the queue says so.
            logger.debug("could not check the rate limit of a client; its request is let in: %s", error)
            return None
        allowed, retry_us, remaining, whole_us = cast("list[int]", taken)
        if allowed:
            return None
        message = f"each client is limited to {self._rpm} requests a minute, {self._burst} of them at once; slow down"
        limits = (self._rpm, self._burst, remaining, whole_us / 1e6)
        return RateLimited(message, retry_us / 1e6, Shed.CLIENT.value, limits)

"""The numbers of a model's owners, one after the other: in Redis for all frontends, and in the memory of each.

    owner ──▶ known here? ──▶ its position, without a round trip
                └ no ──number.lua──▶ the number that it has, or the next one

Only a model that is divided has numbers, and a frontend asks once for an owner. The first 10,000 owners of a model get
one. For later ones a hash is as good, by the law of large numbers, and an open set of owners costs no memory.
"""

from __future__ import annotations

from typing import cast

from redis import Redis

from config.keys import Shard
from tasks.client.versions import WHOLE, digest, hashed_position, position
from tasks.script_args import NUMBER, OwnerArgs, OwnerKeys

KEPT_S = 7 * 24 * 3600
"""The time that a model's numbers are kept after it was last divided: a canary that goes on has the same owners."""


class OwnerNumbers:
    """The positions of owners. Every method but `forget` raises RedisError."""

    def __init__(self, redis: Redis, shard: Shard | None = None, most: int = WHOLE) -> None:
        self._redis = redis
        self._keys = shard or Shard()
        self._most = most
        self._number = redis.register_script(NUMBER.text)
        self._known: dict[str, dict[str, int]] = {}

    def position(self, model: str, owner: str) -> int:
        """The position of an owner; a round trip for one that this process does not know."""
        known = self._known.setdefault(model, {})
        name = digest(owner)
        at = known.get(name)
        if at is not None:
            return at
        if len(known) < self._most:
            args = OwnerArgs(owner=name, most=self._most, keep_ms=KEPT_S * 1000)
            number = cast("int", self._number(keys=OwnerKeys(owners=self._keys.owners(model)), args=args))
            if number >= 0:
                at = known[name] = position(number)
                return at
            # No more are given, so from here on the table is complete.
            self._read(model)
        return hashed_position(name)

    def keep(self, model: str) -> None:
        """Read the numbers that were given before this process began, and keep all for as long as they are used."""
        known, key = self._known.get(model), self._keys.owners(model)
        newest = next(reversed(known), "") if known else ""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.expire(key, KEPT_S)
        pipeline.hlen(key)
        pipeline.hget(key, newest)
        _, there, number = pipeline.execute()
        # Redis has lost data, and gives numbers anew: fewer than before, or as many by now, but others. What a server
        # has lost that took over is what came last.
        if (
            known is None
            or there < len(known)
            or (known and (number is None or position(int(number)) != known[newest]))
        ):
            self._read(model)

    def forget(self, model: str) -> None:
        """Forget the owners of a model that is not divided any more; Redis keeps them for a while."""
        self._known.pop(model, None)

    def _read(self, model: str) -> None:
        rows = cast("dict[bytes, bytes]", self._redis.hgetall(self._keys.owners(model)))
        self._known[model] = {name.decode(): position(int(number)) for name, number in rows.items()}

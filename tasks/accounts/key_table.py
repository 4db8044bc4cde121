"""The API keys as the frontends see them: a whole, versioned copy in Redis of the keys in the database.

    manage.py keys ──▶ database (the truth) ──▶ publish_keys.lua ──▶ bunch:keys, bunch:keys:version ──▶ each frontend
                            ▲ ops worker looks at its version every second, and publishes what Redis lacks

A frontend asks for the version twice a second and reads the table when it has changed; no request waits for either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from redis import Redis

from config.keys import Shard
from tasks.accounts.api_keys import ApiKey
from tasks.script_args import PUBLISH_KEYS, KeyTableArgs, KeyTableKeys

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ApiKey).decode


class KeyTable(msgspec.Struct, frozen=True):
    """Every usable key, by its id. `version` is `<database>:<number>`."""

    version: str
    keys: dict[str, ApiKey]


class KeyTableStore:
    """The key table in Redis. Every method raises RedisError."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._redis = redis
        self._keys = shard or Shard()
        self._publish = redis.register_script(PUBLISH_KEYS.text)

    def publish(self, version: str, keys: Sequence[ApiKey]) -> bool:
        """Replace the table. False when Redis already has this version, or a later one of the same database."""
        names = KeyTableKeys(table=self._keys.api_keys(), version=self._keys.api_keys_version())
        args: list[str | bytes] = [*KeyTableArgs(version=version)]
        for key in keys:
            args += (key.id, _encode(key))
        return bool(self._publish(keys=names, args=args))

    def version(self) -> str:
        """The version of the table; empty when none was ever published."""
        found = cast("bytes | None", self._redis.get(self._keys.api_keys_version()))
        return found.decode() if found else ""

    def read(self) -> KeyTable:
        """Read the table together with its version."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.get(self._keys.api_keys_version())
        pipeline.hgetall(self._keys.api_keys())
        version, stored = cast("tuple[bytes | None, dict[bytes, bytes]]", pipeline.execute())
        keys = [_decode(raw) for raw in stored.values()]
        return KeyTable(version.decode() if version else "", {key.id: key for key in keys})

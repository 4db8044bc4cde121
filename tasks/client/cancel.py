"""Cancels requests, for every API: `DELETE /v1/result/{id}`, Celery's `revoke` and `terminate`.

    waiting, with a state   ──▶ REVOKED at once; its caller is told, whether by the id or on an open connection
    waiting, without one    ──▶ its caller on an open connection is told; Celery writes the state
    started                 ──▶ not changed

A worker drops the message when it claims it; nobody waits for that.
"""

from __future__ import annotations

from typing import cast

from redis import Redis

from config.keys import Shard
from tasks.script_args import CANCEL, CancelArgs, CancelKeys


class Canceller:
    """Cancels requests that have not started."""

    def __init__(self, redis: Redis, shard: Shard | None = None) -> None:
        self._cancel = redis.register_script(CANCEL.text)
        self._keys = shard or Shard()

    def cancel(self, task_id: str, stateless_ms: int = 0) -> str:
        """Cancel a request. Returns the state that it had: `PENDING` means cancelled, '' no state. Raises RedisError.

        Args:
            stateless_ms: how long a request without a readable state may wait; 0: such a request is not cancelled.
        """
        keys = CancelKeys(result=self._keys.result(task_id), cancelled=self._keys.cancelled())
        args = CancelArgs(task_id=task_id, channel=self._keys.revoked_channel(), stateless_ms=stateless_ms)
        found = self._cancel(keys=keys, args=args)
        return cast("bytes", found).decode()

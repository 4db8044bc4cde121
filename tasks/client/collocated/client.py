"""The client of a frontend that has its queues and executors in its own process.

Redis is asked only for requests of an earlier life of the process: ids that this one does not know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from redis import Redis

from batching.memory.store import MemoryStore
from batching.policy import Gcra, Shed
from config.keys import Shard
from config.settings import Settings
from tasks.client.client import Client
from tasks.client.client_limit import ClientLimit
from tasks.client.collocated.admission import Capacity, LocalAdmission, QuotaStates
from tasks.client.collocated.outbox import LocalOutbox, LocalWriter
from tasks.client.collocated.router import LocalRouter
from tasks.client.submission import scoped
from tasks.errors import RateLimited
from tasks.protocol.caller import Caller
from tasks.protocol.outgoing import Outgoing
from tasks.protocol.results import Reply, decode_reply
from tasks.protocol.seal import seal_of


class LocalClient(Client):
    """`Client` over the queues of this process."""

    outbox: LocalOutbox  # type: ignore[assignment]
    router: LocalRouter

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        store: MemoryStore,
        capacity: Capacity,
        most_bytes: int,
        on_answered: Callable[[Outgoing], None] = lambda out: None,
    ) -> None:
        self._store = store
        self.admission = LocalAdmission(settings, store, capacity, most_bytes)
        super().__init__(settings, redis, on_answered=on_answered)

    def _make_router(self, redis: Redis, name: str) -> LocalRouter:
        return LocalRouter(redis, name, self._store, on_hang_up=self._take_back)

    def _make_outbox(self, settings: Settings, redis: Redis, name: str) -> LocalOutbox:  # type: ignore[override]
        writer = self._writer = LocalWriter(self.router.channel, seal_of(settings))
        return LocalOutbox(settings, self._store, self.admission, self.router.settle, writer, self._answered)

    def forget(self, task_id: str) -> None:
        if self._store.states.pop(task_id) is None:
            super().forget(task_id)

    def cancel(self, task_id: str) -> str:
        stored = self._store.states.get(task_id)
        if stored is None:
            return super().cancel(task_id)
        status = decode_reply(stored).status
        self._store.cancel(task_id, status)
        return status

    def charge(self, caller: Caller) -> float:
        quota = self._quotas.of(caller)
        if quota is None:
            return 0.0
        return self.admission.quotas.take(quota.key_id, Gcra(quota.interval_us, quota.burst)) / 1_000_000

    def task_of(self, request_id: str, owner: str = "") -> str:
        known = self.outbox.request_ids.get(self._keys.request(scoped(request_id, owner)))
        if known is None and request_id in self._store.states:
            return request_id
        return known or super().task_of(request_id, owner)

    def _take_back(self, task_ids: Sequence[str]) -> bool:
        for task_id in task_ids:
            self._store.take_back(task_id, self._settings.request_timeout_ms)
        return True

    def _stored(self, task_id: str, deadline: float) -> Reply | None:
        raw = self._store.states.get(task_id)
        return super()._stored(task_id, deadline) if raw is None else decode_reply(raw)


class LocalClientLimit(ClientLimit):
    """The limit of an owner's clients, counted in this process, which is the only one."""

    def __init__(self, settings: Settings, redis: Redis, quotas: QuotaStates, shard: Shard | None = None) -> None:
        super().__init__(settings, redis, shard)
        self._states = quotas

    def refusal(self, owner: str, client_id: str, count: int = 1) -> RateLimited | None:
        if not client_id or not self._rpm:
            return None
        name = "client:" + hashlib.sha256(f"{owner}\0{client_id}".encode()).hexdigest()[:24]
        limit = Gcra.per_minute(self._rpm, self._burst)
        late_us = self._states.take(name, limit, min(count, self._burst))
        if not late_us:
            return None
        remaining, whole_us = self._states.left(name, limit)
        message = f"each client is limited to {self._rpm} requests a minute, {self._burst} of them at once; slow down"
        limits = (self._rpm, self._burst, remaining, whole_us / 1e6)
        return RateLimited(message, late_us / 1e6, Shed.CLIENT.value, limits)

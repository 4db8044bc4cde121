"""The reply router of a gevent frontend: one subscription per process, one waiter per request.

    finish.lua ──PUBLISH bunch:reply:<process> '[reply, …]'──▶ reader ──▶ Pending.reply, its greenlet goes on
    cancel.lua ──PUBLISH bunch:revoked '[reply]', to all ─────▶ │
                                                              │
    stored keys ◀──MGET: after a reconnect, before a deadline─┘

Celery's own result consumer wakes every waiter at each message, holds a subscription per task, and dies after a Redis
outage of about 19 s (`celery.backends.asynchronous.geventDrainer`); it is not used here.

Pub/sub may drop messages, so it is only the fast way. After every reconnect, and just before a deadline, the stored
results of pending requests are read. An id that another process submitted is watched through Celery's own channel for
it, for as long as a caller waits.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, cast

import gevent
import msgspec
from gevent import get_hub
from gevent.lock import RLock
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from config.keys import Shard, task_of_result
from config.redis import dedicated_connection, run_id
from tasks.client.pending import Pending
from tasks.errors import BunchError, CallerGone, ShuttingDown
from tasks.protocol.results import FINISHED, Reply, decode_replies, decode_reply

logger = logging.getLogger(__name__)

_TICK_S = 0.05
# Long enough for one MGET, short enough to be "just before" the deadline.
_LAST_LOOK_S = 0.1
# How often to check whether waiting callers have disconnected: one system call for each.
_ASK_EVERY_S = 0.25
_READ_TIMEOUT_S = 1.0
# A dead subscription (a firewall's table, a host that vanished) looks like a silent one. After this time it is sent a
# PING, after three times as long it counts as dead.
_SILENCE_S = 1.0
_MAX_BACKOFF_S = 1.0
_MGET_CHUNK = 500
# What a process keeps of waiting requests to send them again after a failover. What is beyond it is not sent again.
MAX_KEPT_BYTES = 64 * 1024 * 1024

STORED = "STORED"


def shutting_down() -> BunchError:
    return ShuttingDown("this process is shutting down; try again, and another one will answer")


class Router:
    """Delivers replies of one shard to the greenlets of this process. The constructor opens nothing; `start`
    subscribes.
    """

    def __init__(
        self,
        redis: Redis,
        process_id: str,
        shard: Shard | None = None,
        *,
        on_hang_up: Callable[[Sequence[str]], object] = lambda task_ids: None,
        on_new_server: Callable[[], object] = lambda: None,
        max_kept_bytes: int = MAX_KEPT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = shard or Shard()
        self.channel = self._keys.reply_channel(process_id)
        self._revoked = self._keys.revoked_channel()
        # Plain channels have no node in a cluster: what is published there, every node passes on to every other.
        self._s = "S" if self._keys.tag else ""
        self._on_hang_up = on_hang_up
        self._on_new_server = on_new_server
        self._max_kept_bytes = max_kept_bytes
        self.kept_bytes = 0
        # The `run_id` of the server of the last subscription; empty if it may not be asked for.
        self._server: str | None = None
        self._redis = redis
        self._clock = clock
        self._pending: dict[str, Pending] = {}
        self._watched: dict[str, list[Pending]] = {}
        # No pending request is due before this.
        self._next = math.inf
        self._connection: Any = None
        self._is_new = False
        self._sending = RLock()
        self._greenlets: list[gevent.Greenlet[..., None]] = []
        self._stopped = False
        self._refusing = False
        self._refusal: Callable[[], BunchError] = shutting_down
        self.connected = False
        self._made_at = clock()
        self._has_heard = False
        # Whether its loss has been logged.
        self._is_lost = False

    def is_deaf(self, starting_s: float) -> bool:
        """Return whether replies are not heard; at the start that is so after `starting_s`."""
        return not self.connected and (self._has_heard or self._clock() - self._made_at >= starting_s)

    def start(self) -> None:
        self._greenlets = [gevent.spawn(self._read), gevent.spawn(self._sweep)]

    def stop(self) -> None:
        self._stopped = True
        gevent.killall(self._greenlets)
        self._disconnect()
        # Without the sweep nothing else would end these waits.
        self._refuse_all()

    def refuse(self, refusal: Callable[[], BunchError] = shutting_down) -> None:
        """Refuse all pending and further requests: this process must stop, and its callers are told before that. A
        second call keeps the first one's refusal.
        """
        if not self._refusing:
            self._refusing, self._refusal = True, refusal

    @property
    def size(self) -> int:
        """The number of pending requests; must be 0 when nobody waits."""
        return len(self._pending) + sum(map(len, self._watched.values()))

    def expect(self, task_id: str, timeout_s: float, hung_up: Callable[[], bool] | None = None) -> Pending:
        """Register before the message is sent, since the reply may arrive before the sender runs again.

        `hung_up` tells whether the caller has disconnected. It is called regularly; a request whose caller is gone is
        settled with `CallerGone` and cancelled.
        """
        pending = Pending(task_id, self._clock() + timeout_s, hung_up=hung_up)
        self._pending[task_id] = pending
        self._schedule(pending, pending.deadline - _LAST_LOOK_S)
        return pending

    def watch(self, task_id: str, timeout_s: float) -> Pending:
        """Wait for an id that this process did not submit."""
        channel = self._keys.result(task_id)
        pending = Pending(task_id, self._clock() + timeout_s, channel)
        watchers = self._watched.setdefault(task_id, [])
        watchers.append(pending)
        self._schedule(pending, pending.deadline)
        # The confirmation of the subscription triggers the first read of the result, so nothing is missed.
        self._send(f"{self._s}SUBSCRIBE", channel)
        return pending

    def keep(self, pending: Pending, sent: Any, size: int) -> None:
        """Keep what it takes to send a request again, `size` bytes, until it is forgotten; nothing beyond the limit."""
        if self.kept_bytes + size <= self._max_kept_bytes:
            self.kept_bytes += size
            pending.sent = (sent, size)

    def kept(self) -> list[Any]:
        """Everything that was kept of the requests that are not answered yet."""
        return [each.sent[0] for each in self._pending.values() if each.sent is not None and not each.done]

    def forget(self, pending: Pending) -> None:
        """Remove a pending request, however its wait ended."""
        pending.done = True
        self._drop(pending)
        if not pending.channel:
            self._pending.pop(pending.task_id, None)
            return
        watchers = self._watched.get(pending.task_id, [])
        if pending in watchers:
            watchers.remove(pending)
            if not watchers:
                del self._watched[pending.task_id]
                self._send(f"{self._s}UNSUBSCRIBE", pending.channel)

    def _drop(self, pending: Pending) -> None:
        size, pending.sent = pending.sent[1] if pending.sent is not None else 0, None
        self.kept_bytes -= size

    def settle(self, pending: Pending, reply: Any) -> None:
        """Settle from any greenlet; the waiter runs in the hub's next round."""
        get_hub().loop.run_callback(pending.settle, reply)

    def _refuse_all(self) -> list[str]:
        """Refuse all waiting callers; returns the task ids that may be cancelled."""
        waiting = [each for each in self._pending.values() if not each.done]
        for pending in waiting:
            self.settle(pending, self._refusal())
        for watcher in chain.from_iterable(tuple(self._watched.values())):
            self.settle(watcher, None)
        return [pending.task_id for pending in waiting if not pending.runs_on]

    def _schedule(self, pending: Pending, at: float) -> None:
        """Note the time in one comparison: nearly all requests are answered before anything is due."""
        pending.due = at
        self._next = min(self._next, at)

    def _read(self) -> None:
        backoff = 0.0
        while not self._stopped:
            try:
                self._connect()
                backoff = 0.0
                self._read_until_broken()
            except (RedisError, OSError) as error:
                if isinstance(error, RedisTimeoutError):
                    # What silenced this connection has silenced the idle ones in the pool too.
                    self._redis.connection_pool.disconnect(inuse_connections=False)
                if not self._stopped:
                    # Once for each loss: with many shards, each try of each of them would be a line.
                    level = logging.DEBUG if self._is_lost else logging.WARNING
                    logger.log(level, "reply subscription lost (%s); subscribing again", error)
                    self._is_lost = True
            except Exception:
                logger.exception("the reply subscription failed; subscribing again")
            self._disconnect()
            backoff = min(_MAX_BACKOFF_S, backoff * 2 or 0.02)
            gevent.sleep(backoff)

    def _connect(self) -> None:
        connection = dedicated_connection(self._redis.connection_pool)
        server = run_id(connection)
        # Until it was asked what it has: this connection may break before, or the server may still be loading.
        self._is_new |= self._server is not None and (not server or server != self._server)
        self._server = server
        with self._sending:
            watched = map(self._keys.result, self._watched)
            connection.send_command(f"{self._s}SUBSCRIBE", self._revoked, self.channel, *watched)
            self._connection = connection

    def _disconnect(self) -> None:
        self.connected = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _read_until_broken(self) -> None:
        heard = self._clock()
        while True:
            try:
                message = self._connection.read_response(timeout=_READ_TIMEOUT_S, disconnect_on_error=False)
            except RedisTimeoutError:
                if self._clock() - heard > 3 * _SILENCE_S:
                    raise
                if self._clock() - heard > _SILENCE_S:
                    self._send("PING")
                continue
            heard = self._clock()
            self._heed(message[0], message[1], message[-1])

    def _heed(self, kind: bytes, channel: bytes, data: Any) -> None:
        if kind in {b"message", b"smessage"}:
            self._hear(channel, data)
        elif kind in {b"subscribe", b"ssubscribe"} and channel == self.channel.encode():
            # Messages published while nobody listened are lost, but their results are stored.
            self.connected, self._has_heard, self._is_lost = True, True, False
            self._look_up(list(self._pending))
            if self._is_new:
                self._is_new = False
                self._on_new_server()
        elif kind in {b"subscribe", b"ssubscribe"} and channel != self._revoked.encode():
            self._look_up([task_of_result(channel.decode(), self._keys.tag)])
        elif kind == b"sunsubscribe" and channel == self.channel.encode():
            raise RedisConnectionError("the shard has moved to another node")

    def _hear(self, channel: bytes, data: bytes) -> None:
        try:
            replies = (
                decode_replies(data)
                if channel in {self.channel.encode(), self._revoked.encode()}
                else [decode_reply(data)]
            )
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            # One unreadable reply must not cost the others theirs; each is also stored under a key of its own.
            logger.error("cannot decode the replies on %s: %r; reading the stored results", channel, error)
            self._look_up([*self._pending, *self._watched])
        else:
            self._deliver(replies)

    def _send(self, *command: str) -> None:
        """Send on the subscription's connection; while it is away, do nothing: a reconnect subscribes to everything."""
        with self._sending:
            connection = self._connection
            if connection is None:
                return
            try:
                connection.send_command(*command)
            except (RedisError, OSError) as error:
                logger.debug("could not send %s on the reply subscription: %s", command[0], error)

    def _deliver(self, replies: Sequence[Reply]) -> None:
        get_hub().loop.run_callback(self._deliver_in_hub, replies)

    def _deliver_in_hub(self, replies: Sequence[Reply]) -> None:
        too_large: list[str] = []
        for reply in replies:
            if reply.status == STORED:
                too_large.append(reply.task_id)
            elif reply.status in FINISHED:
                pending = self._pending.pop(reply.task_id, None)
                if pending is not None:
                    pending.settle(reply)
                for watcher in tuple(self._watched.get(reply.task_id, ())):
                    watcher.settle(reply)
        if too_large:
            gevent.spawn(self._look_up, too_large)

    def _look_up(self, task_ids: Sequence[str]) -> None:
        for start in range(0, len(task_ids), _MGET_CHUNK):
            chunk = task_ids[start : start + _MGET_CHUNK]
            stored = self._redis.mget([*map(self._keys.result, chunk)])
            self._deliver([_decoded(cast("bytes", raw), key) for raw, key in zip(stored, chunk, strict=True) if raw])

    def _sweep(self) -> None:
        """Settle every pending request by its deadline, after one last read of the stored results."""
        ask_at = self._clock() + _ASK_EVERY_S
        while not self._stopped:
            gevent.sleep(_TICK_S)
            now = self._clock()
            try:
                self._sweep_until(now)
                if self._refusing and (refused := self._refuse_all()):
                    # Their callers will try again with another process.
                    gevent.spawn(self._on_hang_up, refused)
                if now >= ask_at:
                    ask_at = now + _ASK_EVERY_S
                    self._look_for_hang_ups()
            except Exception:
                # Every deadline of this process depends on this one greenlet.
                logger.exception("the sweep of deadlines failed; the next tick repeats it")

    def _sweep_until(self, now: float) -> None:
        soon = now + _TICK_S / 2
        if soon < self._next:
            return
        waiting = [*self._pending.values(), *chain.from_iterable(self._watched.values())]
        self._next = min((each.due for each in waiting if each.due > soon), default=math.inf)
        self._last_look([each for each in waiting if each.due <= soon], soon)

    def _look_for_hang_ups(self) -> None:
        gone = [each for each in self._pending.values() if not each.done and each.hung_up and each.hung_up()]
        if gone:
            for pending in gone:
                self.settle(pending, CallerGone("the caller has closed its connection, or its sending side"))
            # In another greenlet: a Redis that hangs must not delay other requests' deadlines.
            gevent.spawn(self._on_hang_up, [pending.task_id for pending in gone])

    def _last_look(self, due: Iterable[Pending], until: float) -> None:
        looked_up: list[str] = []
        for pending in (each for each in due if not each.done):
            if pending.deadline <= until:
                # The submitter, which would forget it, may have been killed before it waited.
                self._pending.pop(pending.task_id, None)
                self._drop(pending)
                get_hub().loop.run_callback(pending.settle, None)
            else:
                self._schedule(pending, pending.deadline)
                looked_up.append(pending.task_id)
        if looked_up:
            gevent.spawn(self._look_up_quietly, looked_up)

    def _look_up_quietly(self, task_ids: Sequence[str]) -> None:
        try:
            self._look_up(task_ids)
        except RedisError as error:
            logger.warning("could not read %d stored results before their deadline: %s", len(task_ids), error)


def _decoded(raw: bytes, task_id: str) -> Reply:
    try:
        return decode_reply(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        logger.error("the stored result of %s cannot be read: %r", task_id, error)
        return Reply(task_id, "FAILURE")

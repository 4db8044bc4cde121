"""Celery's Redis result backend for processes with many waiters: `AsyncResult.get()` under gevent, and in threads.

    app = Celery(broker=URL, backend="bunch.celery_backend:BunchBackend+redis://…")

Results are written and read exactly as in `celery.backends.redis`, so both kinds of client and of worker may be mixed.
Only waiting differs:

    celery.backends.redis                                  here
    each message wakes every waiting greenlet              it wakes those that wait for this result
    after 20 failed attempts to reconnect waiting ends     Redis may be away for any time; a `timeout` still holds
    a lost message is never noticed                        the stored keys are read again, the last time at the timeout
    a SUBSCRIBE for each task that is sent                 for each result that is waited for
    a result that timed out stays subscribed               nothing is left behind
    a backend for each thread and greenlet                 one for the process
    concurrent `on_message` callbacks replace each other   each gets its own results
    requests of a frontend with several shards: unknown    found by their ids, if the shards are on this server

The module imports Celery and redis-py and nothing of this project, whose packages have names (`tasks`, `config`) that
other projects use too.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import redis.client
from celery import states
from celery.backends import redis as celery_redis
from celery.backends.asynchronous import geventDrainer
from celery.exceptions import TimeoutError as CeleryTimeoutError
from redis import BlockingConnectionPool

logger = logging.getLogger(__name__)

_TICK_S = 1.0
# How soon a result is found that was published between the first read and the start of the subscription.
_LOOK_AT_NEW_S = 1.0
# How soon a dead subscription is noticed (a firewall that dropped it, a host that vanished).
_LOOK_AT_ALL_S = 10.0
_RETRY_S = 0.5
_LONGEST_WAIT_FOR_CONNECTION_S = 5.0
# The ids of a frontend whose queues are in several shards: the two digits after the version are the shard's number.
_SHARDED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8([0-9a-f]{2})[0-9a-f]-b[0-9a-f]{3}-[0-9a-f]{12}")
_TAG = re.compile(r"\{s\d+\}$")


class _Wait:
    """One call of `get`, `join_native` or `iter_native`; `woken` is set at each of its results."""

    __slots__ = ("on_message", "woken")

    def __init__(self, on_message: Callable[[Any], object] | None) -> None:
        self.on_message = on_message
        self.woken = threading.Event()


class _Drainer(geventDrainer):
    """The greenlet that reads the subscription; no error ends it."""

    _g: Any = None

    def start(self) -> None:
        if self._g is None:
            import gevent

            self._g = gevent.spawn(self.run)

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.result_consumer.drain_events(timeout=_TICK_S)
            except TimeoutError:
                pass
            except Exception:
                logger.exception("could not read from the result subscription; trying again")
                time.sleep(_RETRY_S)
        self._shutdown.set()


class _PubSub(redis.client.PubSub):
    """Subscribes to the channels of shards as the server wants it, and gives their messages like all others."""

    def subscribe(self, *channels: Any, **handlers: Any) -> None:
        plain, sharded = _parted(channels)
        if plain or handlers:
            super().subscribe(*plain, **handlers)
        if sharded:
            self.ssubscribe(*sharded)

    def unsubscribe(self, *channels: Any) -> None:
        plain, sharded = _parted(channels)
        if plain:
            super().unsubscribe(*plain)  # type: ignore[no-untyped-call]
        if sharded:
            self.sunsubscribe(*sharded)  # type: ignore[no-untyped-call]

    def handle_message(self, *args: Any, **options: Any) -> Any:
        message = super().handle_message(*args, **options)  # type: ignore[no-untyped-call]
        if message is not None and message["type"] == "smessage":
            message["type"] = "message"
        return message


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _parted(channels: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The channels without and with the tag of a shard."""
    plain: list[Any] = []
    sharded: list[Any] = []
    for each in channels:
        (sharded if _TAG.search(_text(each)) else plain).append(each)
    return plain, sharded


class ResultConsumer(celery_redis.ResultConsumer):
    """Subscribes to the results that are waited for, and to nothing else.

    Under gevent a greenlet reads (`_Drainer`); otherwise a waiting thread reads for all, as in Celery.
    """

    drainer: Any
    _pubsub: Any = None

    def __init__(self, *args: Any, **options: Any) -> None:
        self._waits: dict[str, list[_Wait]] = {}
        self._new: set[Any] = set()
        self._looked = self._looked_at_all = time.monotonic()
        super().__init__(*args, **options)
        self._green = isinstance(self.drainer, geventDrainer)
        if self._green:
            self.drainer = _Drainer(self)

    def on_after_fork(self) -> None:
        """Reset in a forked child: nothing is waited for yet, and the parent's connection and reader are not its
        own.
        """
        super().on_after_fork()
        self._pubsub = None
        self.subscribed_to.clear()
        self._waits.clear()
        self._new.clear()
        if self._green:
            self.drainer = _Drainer(self)

    def _reset_sync(self) -> None:
        super()._reset_sync()
        self._wanted = threading.Event()

    def consume_from(self, task_id: str) -> None:
        key = self._get_key_for_task(task_id)
        with self._locked():
            self._pending_unsubscribe.discard(key)
            if key in self.subscribed_to:
                return
            self.subscribed_to.add(key)
            self._new.add(key)
            if self._pubsub is not None:
                with self.reconnect_on_error():
                    self._pubsub.subscribe(key)
        # Without a connection the reader makes one: a Redis that is away must not delay a waiter's timeout.
        self._wanted.set()

    def drain_events(self, timeout: float | None = None) -> None:
        """Read the messages that have arrived, or wait up to `timeout` seconds for one."""
        longest = _TICK_S if timeout is None else timeout
        if self._pubsub is None:
            if not self.subscribed_to:
                self._wanted.wait(longest)
                self._wanted.clear()
                return
            if not self._subscribe_again():
                time.sleep(min(longest, _RETRY_S))
                return
        try:
            super().drain_events(timeout)
        finally:
            self._look_now_and_then()

    @contextlib.contextmanager
    def reconnect_on_error(self) -> Iterator[None]:
        """Drop a broken connection. `drain_events` opens the next one, and retries until it succeeds."""
        try:
            yield
        except TimeoutError:
            # Raised by a poll; redis-py's own TimeoutError is a different class.
            raise
        except self._connection_errors as error:
            self._lose(error)

    def on_state_change(self, meta: dict[str, Any], message: Any) -> None:
        """Handle a message, or a stored result that was read."""
        task_id = meta.get("task_id", "")
        waits = tuple(self._waits.get(task_id, ()))
        for wait in waits:
            if wait.on_message is not None:
                wait.on_message(meta)
        if meta["status"] not in states.READY_STATES:
            return
        if any(task_id in pending for pending in self._pending_results):
            super().on_state_change(meta, message)
        else:
            # Celery buffers messages that nobody waits for; here the subscription begins with the wait, and the key has
            # it.
            self.cancel_for(task_id)
        for wait in waits:
            wait.woken.set()

    def _wait_for_pending(
        self,
        result: Any,
        timeout: float | None = None,
        on_interval: Callable[[], object] | None = None,
        on_message: Callable[[Any], object] | None = None,
        **options: Any,
    ) -> Iterator[None]:
        """Yield after each result or tick until all of `result` is ready.

        Raises:
            celery.exceptions.TimeoutError: after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        wait = _Wait(on_message)
        awaited = [each for each in _leaves(result) if each._cache is None]  # noqa: SLF001
        for each in awaited:
            self._waits.setdefault(each.id, []).append(wait)
            self.backend.await_result(each)
        try:
            self._look_quietly([each.id for each in awaited], told=True)
            while not result.on_ready.ready:
                left = _TICK_S if until is None else min(_TICK_S, until - time.monotonic())
                if left <= 0:
                    self._look_quietly([each.id for each in awaited])
                    if result.on_ready.ready:
                        break
                    raise CeleryTimeoutError("The operation timed out.")
                self._read_or_wait(wait, left)
                yield
                if on_interval is not None:
                    on_interval()
        finally:
            for each in awaited:
                self._waits[each.id].remove(wait)
                if not self._waits[each.id]:
                    del self._waits[each.id]
            self.backend.leave_nothing_of(result)

    def _read_or_wait(self, wait: _Wait, longest_s: float) -> None:
        if self._green:
            self.drainer.start()
            wait.woken.wait(longest_s)
        elif not wait.woken.is_set():
            with contextlib.suppress(TimeoutError):
                self.drain_events(timeout=longest_s)
        wait.woken.clear()

    def _subscribe_again(self) -> bool:
        with self._locked():
            if self._pubsub is not None:
                return True
            self.subscribed_to -= self._pending_unsubscribe
            self._pending_unsubscribe.clear()
            if not self.subscribed_to:
                return False
            pubsub = _PubSub(self.backend.client.connection_pool, ignore_subscribe_messages=True)
            try:
                pubsub.subscribe(*self.subscribed_to)
                self._pubsub = pubsub
                self._look(list(self.subscribed_to))
            except self._connection_errors as error:
                self._lose(error)
                return False
        return True

    def _lose(self, reason: object) -> None:
        logger.warning("result subscription lost (%s); subscribing again", reason)
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with contextlib.suppress(*self._connection_errors):
                pubsub.close()

    def _look_now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._looked_at_all > _LOOK_AT_ALL_S:
            self._looked = self._looked_at_all = now
            self._new.clear()
            with self.reconnect_on_error():
                if self._look(list(self.subscribed_to)):
                    self._lose("it did not deliver a result")
        elif self._new and now - self._looked > _LOOK_AT_NEW_S:
            self._looked = now
            new, self._new = self._new & self.subscribed_to, set()
            with self.reconnect_on_error():
                self._look(list(new))

    def _look_quietly(self, task_ids: Iterable[str], *, told: bool = False) -> None:
        with self.reconnect_on_error():
            self._look([self._get_key_for_task(each) for each in task_ids], told=told)

    def _look(self, keys: list[Any], *, told: bool = False) -> int:
        """Read stored results; returns how many are ready. `told`: call `on_message` for the others too."""
        ready = 0
        for raw in self.backend.mget(keys) if keys else ():
            if not raw:
                continue
            meta = self._decode_result(raw)
            is_ready = meta["status"] in states.READY_STATES
            ready += is_ready
            if is_ready or told:
                self.on_state_change(meta, None)
        return ready


class BunchBackend(celery_redis.RedisBackend):
    """Celery's Redis backend with a `ResultConsumer` for many waiters."""

    ResultConsumer = ResultConsumer

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Otherwise the app makes one, with pool and subscription, for each thread and greenlet.
        self.thread_safe = True

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Do nothing: Celery would subscribe here for every task that is sent, waited for or not."""

    def await_result(self, result: Any) -> None:
        """Have the consumer resolve it."""
        self._add_pending_result(result.id, result)
        self.result_consumer.consume_from(result.id)

    def leave_nothing_of(self, result: Any, listeners: int = 0) -> None:
        """End the subscriptions of a finished wait, except those with a `then` callback.

        Celery keeps them until the result arrives. A set listens to each of its members: for those `listeners` is 1.
        """
        if result.on_ready.ready or sum(each is not None for each in result.on_ready.listeners) > listeners:
            return
        for each in getattr(result, "results", ()):
            self.leave_nothing_of(each, 1)
        if not hasattr(result, "results"):
            self.remove_pending_result(result)

    def get_key_for_task(self, task_id: str, key: Any = "") -> Any:
        """The key of a result, or what Celery keeps beside it; that of a request of a shard ends in its tag."""
        name, tag = super().get_key_for_task(task_id, key), _tag_of(task_id)
        return f"{_text(name)}{tag}" if tag else name

    def decode_result(self, payload: Any) -> Any:
        """A result; a large output is read from where it lies, in this Redis or that of `bunch_blob_url`."""
        meta = super().decode_result(payload)
        value = meta.get("result")
        if meta.get("status") == states.SUCCESS and isinstance(value, dict) and value.keys() == {"$blob"}:
            found = self._blobs.get(f"bunch:blob:{value['$blob']['id']}{_tag_of(meta['task_id'])}")
            if found is None:
                gone = LookupError("the output of this task is not there any more")
                meta |= {"status": states.FAILURE, "result": gone}
            elif value["$blob"].get("form") == "bytes":
                meta["result"] = base64.b64encode(found).decode()
            else:
                meta["result"] = json.loads(found)
        return meta

    @cached_property
    def _blobs(self) -> Any:
        url = self.app.conf.get("bunch_blob_url")
        return self.redis.Redis.from_url(url) if url else self.client

    def _strip_prefix(self, key: Any) -> str:
        return _TAG.sub("", super()._strip_prefix(key))

    def _get_pool(self, **parameters: Any) -> BlockingConnectionPool:
        """A pool whose users wait for a free connection: the plain pool raises an error when all are in use."""
        return BlockingConnectionPool(  # type: ignore[no-untyped-call]
            timeout=_LONGEST_WAIT_FOR_CONNECTION_S, **parameters
        )


def _tag_of(task_id: Any) -> str:
    found = _SHARDED.fullmatch(_text(task_id))
    return f"{{s{int(found[1], 16)}}}" if found else ""


def _leaves(result: Any) -> Iterator[Any]:
    """The single results of a set, of the sets in it, or the result itself."""
    if hasattr(result, "results"):
        for each in result.results:
            yield from _leaves(each)
    else:
        yield result

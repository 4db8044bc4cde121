"""The sender of callbacks, in the ops worker. Several may run at once.

bell ─▶ take what is due ─▶ its host is closed or busy: later, no attempt
               │            its outcome is not there yet: look again
               ▼
        a thread each ─POST─▶ taken: gone from Redis
          (16 at most,        not taken, or no answer: later, for an hour
           4 to a host)       410, a forbidden address, the hour is over: a dead letter
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

import msgspec
from redis.exceptions import RedisError

from batching.blobs.store import BlobGoneError
from config.allowed_hosts import CallbackHosts, ForbiddenTarget, Target
from config.settings import Settings
from config.shards import Places
from config.version import VERSION
from tasks.callbacks import delivery
from tasks.callbacks.pacing import HostGates, pause_s
from tasks.callbacks.signature import HEADER, signature_of
from tasks.callbacks.store import RETRIED_S, Callback, CallbackStore
from tasks.observability import metrics
from tasks.protocol.answers import answer_of
from tasks.protocol.outputs import PlacedBlobs, with_output
from tasks.protocol.results import FINISHED, decode_reply

logger = logging.getLogger(__name__)

_AT_ONCE = 16
_TO_ONE_HOST = 4
# Taken in one look; what cannot start at once is put off, so that a host that hangs stops no other.
_TAKEN = 100
_GONE = 410
_WAIT_S = 1.0
# Redis takes zero for no limit at all.
_LEAST_WAIT_S = 0.01
_LOOK_AGAIN_S = 10.0
_FLUSH_EVERY_S = 1.0
_LONGEST_PAUSE_S = 5.0


class Sender:
    """`start` starts its thread; `stop` waits for the calls under way.

    Args:
        deliver: as `delivery.deliver`.
        clock: epoch seconds.
        chance: a number from 0 to 1.
    """

    def __init__(
        self,
        settings: Settings,
        places: Places,
        *,
        deliver: Callable[..., None] = delivery.deliver,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._secret = settings.callback_secret
        self._hosts = CallbackHosts(settings.callback_hosts)
        self._result_ttl_ms = settings.result_ttl_ms
        self._lease_s = settings.lease_ttl_s
        self._store = CallbackStore(places)
        self._blobs = PlacedBlobs(places, settings)
        # Where there is a ledger, its thread writes this process's metrics; a second writer would count twice.
        self._flusher = None if settings.keeps_ledger else metrics.MetricsFlusher(places.home.redis)
        self._deliver = deliver
        self._clock = clock
        self._chance = chance
        self._gates = HostGates(_TO_ONE_HOST)
        self._under_way: dict[str, threading.Thread] = {}
        # Over both of the above, and over the renewal of leases: a lease that has ended must not be renewed.
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._more = False
        self._next_s = _WAIT_S
        self._flushed_at = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(delivery.TIMEOUT_S + 2 * _WAIT_S)

    def turn(self, wait_s: float = _WAIT_S) -> int:
        """Wait for something to do, start what may start, and keep the leases. Returns the number started.

        Raises:
            RedisError: Redis cannot be reached; what was taken comes back once its lease has ended.
        """
        free = _AT_ONCE - len(self._under_way)
        if free <= 0:
            self._ended.wait(wait_s)
        elif not self._more:
            self._store.wait(min(wait_s, self._next_s))
        self._ended.clear()
        free = _AT_ONCE - len(self._under_way)
        with self._lock:
            self._gates.begin()
            now_ms, next_ms, ids = self._store.take(_TAKEN if free > 0 else 0, self._lease_s, self._under_way)
        self._more = len(ids) == _TAKEN
        later: dict[str, int] = {}
        started = 0
        for task_id, callback in zip(ids, self._store.read(ids), strict=True):
            if callback is None:
                self._lose(task_id)
                continue
            if task_id in self._under_way:
                continue
            wait = self._start(task_id, callback) if started < free else _WAIT_S / 10
            if wait:
                later[task_id] = now_ms + int(1000 * wait * (1 + self._chance()))
            else:
                started += 1
        self._store.look_again(later)
        self._next_s = max(_LEAST_WAIT_S, (min([next_ms, *later.values()]) - now_ms) / 1000)
        return started

    def _start(self, task_id: str, callback: Callback) -> float:
        """Start an attempt; returns zero, or the time after which to try."""
        try:
            target = self._hosts.target(callback.url)
        except ForbiddenTarget as error:
            # Its host was taken from the list since.
            self._give_up(task_id, callback, f"callback_url: {error}")
            return 0.0
        with self._lock:
            wait_s = self._gates.wait_s(target.place, self._clock())
            if not wait_s:
                thread = threading.Thread(
                    target=self._attempt, args=(task_id, callback, target), name="callback", daemon=True
                )
                # First: where no thread can be started now, it must not count as under way, whose lease is renewed.
                thread.start()
                self._gates.start(target.place)
                self._under_way[task_id] = thread
        if wait_s and self._is_over(callback):
            self._give_up(task_id, callback, f"{target.place} did not answer other requests either")
            return 0.0
        return wait_s

    def _attempt(self, task_id: str, callback: Callback, target: Target) -> None:
        answered, started = True, time.monotonic()
        settle: Callable[[], None] | None = None
        try:
            body = callback.body or self._body(task_id)
            if body is None:
                return
            now = self._clock()
            told = msgspec.structs.replace(
                callback, attempts=callback.attempts + 1, first_ms=callback.first_ms or int(now * 1000)
            )
            try:
                signature = signature_of(self._secret, body, int(now))
                self._deliver(target, body, [(HEADER, signature), ("User-Agent", f"bunch/{VERSION}")])
            except ForbiddenTarget as error:
                settle = self._burial(task_id, told, body, str(error))
            except delivery.NotTaken as error:
                settle = self._failure(task_id, told, body, f"{target.place}: {error.why}", error)
            except delivery.Unreachable as error:
                answered = False
                settle = self._failure(task_id, told, body, str(error))
            else:
                settle = self._delivery(task_id, told)
        except RedisError as error:
            logger.warning("could not read the result for the callback of %s: %s", task_id, error)
        except Exception:
            logger.exception("the callback of %s failed; it is tried again", task_id)
        finally:
            with self._lock:
                took_s = time.monotonic() - started
                self._gates.end(target.place, self._clock(), took_s, answered=answered)
                self._under_way.pop(task_id, None)
            self._ended.set()
        if settle is not None:
            self._settled(task_id, settle)

    def _body(self, task_id: str) -> bytes | None:
        """The body to send; None if there is no outcome, now or ever."""
        raw = self._store.result(task_id)
        if raw is None:
            # The caller has had it deleted, or no worker has ended the request within its time.
            self._lose(task_id)
            return None
        reply = decode_reply(raw)
        if reply.status in FINISHED:
            try:
                return answer_of(task_id, with_output(reply, self._blobs.of(task_id)))
            except BlobGoneError:
                self._lose(task_id)
                return None
        self._store.look_in(task_id, _LOOK_AGAIN_S)
        return None

    def _lose(self, task_id: str) -> None:
        logger.warning("nothing to push for %s: its result is gone", task_id)
        metrics.CALLBACKS.labels("lost").inc()
        self._store.drop(task_id)

    def _is_over(self, callback: Callback) -> bool:
        last_ms = callback.first_ms + RETRIED_S * 1000 if callback.first_ms else callback.until_ms
        return self._clock() * 1000 >= last_ms

    def _delivery(self, task_id: str, callback: Callback) -> Callable[[], None]:
        metrics.CALLBACKS.labels("delivered").inc()
        return lambda: self._store.delivered(task_id, callback, self._result_ttl_ms, self._clock())

    def _failure(
        self, task_id: str, callback: Callback, body: bytes, why: str, answer: delivery.NotTaken | None = None
    ) -> Callable[[], None]:
        if self._is_over(callback) or (answer is not None and answer.status == _GONE):
            return self._burial(task_id, callback, body, why)
        metrics.CALLBACKS.labels("retried").inc()
        failed = msgspec.structs.replace(callback, error=why)
        in_s = pause_s(callback.attempts, self._chance(), answer.retry_after_s if answer else 0.0)
        return lambda: self._store.put_off(task_id, failed, in_s)

    def _burial(self, task_id: str, callback: Callback, body: bytes, why: str) -> Callable[[], None]:
        logger.warning("the callback of %s was given up after %d attempts: %s", task_id, callback.attempts, why)
        metrics.CALLBACKS.labels("given_up").inc()
        metrics.DEAD_LETTERED.labels(callback.model, "callback").inc()
        return lambda: self._store.bury(task_id, callback, body, why, self._clock())

    def _give_up(self, task_id: str, callback: Callback, why: str) -> None:
        body = callback.body or self._body(task_id)
        if body is not None:
            self._burial(task_id, callback, body, why)()

    def _settled(self, task_id: str, settle: Callable[[], None]) -> None:
        try:
            settle()
        except RedisError as error:
            # Its lease ends, and it is sent once more: receivers know it by its task id.
            logger.warning("could not note the outcome of the callback of %s: %s", task_id, error)

    def _run(self) -> None:
        paused_s = 0.0
        while not self._stop.wait(paused_s):
            paused_s = self._tried(paused_s, self._turn_and_flush)
        until = time.monotonic() + delivery.TIMEOUT_S
        while self._under_way and time.monotonic() < until:
            self._ended.wait(_WAIT_S / 10)
            with self._lock:
                self._tried(0.0, lambda: self._store.take(0, self._lease_s, self._under_way))
        self._tried(0.0, self._flush)

    def _tried(self, paused_s: float, act: Callable[[], object]) -> float:
        """Returns the pause until the next round."""
        try:
            act()
        except RedisError as error:
            if not paused_s:
                logger.warning("callbacks wait until Redis can be reached again: %s", error)
            return min(_LONGEST_PAUSE_S, max(0.5, paused_s * 2))
        except Exception:
            logger.exception("sending callbacks failed and will be retried")
            return _LONGEST_PAUSE_S
        return 0.0

    def _turn_and_flush(self) -> None:
        self.turn()
        if time.monotonic() - self._flushed_at >= _FLUSH_EVERY_S:
            self._flush()
            self._flushed_at = time.monotonic()

    def _flush(self) -> None:
        if self._flusher is not None:
            self._flusher.flush()

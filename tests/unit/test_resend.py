"""A frontend's steps around a failover, step by step; tests/gevent_scenarios/resent.py has the real servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gevent
import pytest
from msgspec import structs
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as RedisConnectionError

from batching.policy.gcra import Gcra, Take
from config.keys import Shard
from config.redis import connect
from config.settings import ModelSettings, Settings
from config.tiers import Tier
from tasks.client.admission_args import AdmissionArgs
from tasks.client.admission_codes import QUEUED
from tasks.client.client import Client
from tasks.client.confirmation import Confirmation
from tasks.client.dedup import Repeated
from tasks.client.outbox import Outbox
from tasks.client.pending import Pending
from tasks.client.resend import LenientArgs
from tasks.client.router import Router
from tasks.client.submission import Submission
from tasks.errors import BackendUnavailable
from tasks.protocol.caller import ANYBODY
from tasks.protocol.outgoing import Outgoing
from tasks.protocol.quota import Quota

MODELS = {name: ModelSettings(name=name, source="tests:Nothing") for name in ("m", "direct")}
SETTINGS = Settings(models=MODELS, default_model="m")
LOST = RedisConnectionError("refused")
LIMIT_S = 10.0


class FakeOutbox(Outbox):
    """An outbox whose flushes come to what the test says, the failures after a second; `sent` has their deadlines."""

    def __init__(self, *results: Exception | None, hold_s: float = 5.0) -> None:
        self.now = 100.0
        self.doubted: list[list[str]] = []
        self.settled: list[tuple[str, object]] = []
        self.waiting: list[Any] = []
        self.sent: list[list[int]] = []
        self._results = list(results)
        super().__init__(
            connect("redis://127.0.0.1:1"),
            "f",
            AdmissionArgs(SETTINGS, Shard()),
            self._told,
            on_doubt=self.doubted.append,
            kept=lambda: self.waiting,
            hold_s=hold_s,
            direct={"direct"},
            clock=lambda: self.now,
        )

    def _told(self, pending: Pending, reply: object) -> None:
        self.settled.append((pending.task_id, reply))
        pending.settle(reply)

    def ask(self, task_id: str, model: str = "m", *, ago_s: float = 0.0, receipt: bool = False) -> Pending:
        pending = Pending(task_id, self.now - ago_s + LIMIT_S)
        out = Outgoing(task_id, Submission(model, ANYBODY, b"1", LIMIT_S), "q", int(LIMIT_S * 1000), 2000, 60_000)
        self.put(out, b"", pending, receipt=receipt)
        return pending

    def turn(self) -> None:
        """One turn of `_run`."""
        self._submit(self._next())

    @property
    def refused(self) -> list[str]:
        return [task_id for task_id, reply in self.settled if isinstance(reply, BackendUnavailable)]

    def fails(self) -> None:
        self.now += 1.0

    def _flush(self, batch: Any, rules: AdmissionArgs) -> bytes:
        self.sent.append([item.out.deadline_ms for item in batch])
        result = self._results.pop(0) if self._results else None
        if result is not None:
            self.fails()
            raise result
        return QUEUED * len(batch)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.client.outbox._FIRST_PAUSE_S", 0.0)


def test_a_flush_that_is_held_has_the_times_that_are_left_and_so_has_what_waited_behind_it() -> None:
    outbox = FakeOutbox(LOST, LOST, None)
    outbox.ask("held", ago_s=1.0)
    behind: list[Pending] = []
    fails = outbox.fails

    def meanwhile() -> None:
        fails()
        behind.append(outbox.ask("behind"))

    outbox.fails = meanwhile  # type: ignore[method-assign]
    outbox.turn()
    # Others come after it.
    outbox.now += 0.5
    outbox.ask("after")
    outbox.turn()
    outbox.now += 0.5
    outbox.ask("later")
    outbox.turn()
    assert outbox.sent == [[10_000], [8_000], [7_000], [8_500, 9_500, 10_000], [10_000]]
    assert len(behind) == 2
    assert outbox.settled == []


def test_nobody_is_taken_back_while_all_of_a_flush_are_held() -> None:
    outbox = FakeOutbox(LOST, LOST, LOST, hold_s=2.5)
    outbox.ask("first", ago_s=1.0)
    outbox.ask("second")
    outbox.turn()
    assert outbox.refused == ["first", "second"]
    assert outbox.doubted == [["first"], ["second"]]


def test_a_request_that_can_do_without_the_queue_is_not_held() -> None:
    outbox = FakeOutbox(LOST, None)
    for model in ("m", "direct"):
        outbox.ask(model, model)
        outbox.ask(f"{model}, polled", model, receipt=True)
    outbox.ask("direct, under a key", "direct").runs_on = True
    outbox.turn()
    assert outbox.refused == ["direct"]
    assert outbox.doubted == [["direct"]], "the flush may still run"


def test_whoever_gave_up_while_a_flush_was_held_is_too_late_for_a_worker_unless_the_request_runs_on() -> None:
    outbox = FakeOutbox(LOST, None)
    waits, gone, keyed = outbox.ask("waits"), outbox.ask("gone"), outbox.ask("under a key")
    keyed.runs_on = True
    fails = outbox.fails

    def meanwhile() -> None:
        fails()
        gone.settle(None)
        keyed.settle(None)

    outbox.fails = meanwhile  # type: ignore[method-assign]
    outbox.turn()
    assert not waits.done
    assert outbox.sent == [[10_000, 10_000, 10_000], [9000, 1, 9000]]


def test_a_caller_who_hangs_up_during_an_outage_is_taken_back_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.client.client._TAKE_BACK_EVERY_S", 0.0)
    client = Client(SETTINGS, connect("redis://127.0.0.1:1"))
    taken: list[Sequence[str]] = []

    def take_back(task_ids: Sequence[str]) -> bool:
        taken.append(task_ids)
        return len(taken) == 3

    client._take_back = take_back  # type: ignore[method-assign]
    client.router.expect("gone", LIMIT_S, hung_up=lambda: True)
    client.router._look_for_hang_ups()
    with gevent.Timeout(60):
        while len(taken) < 3:
            gevent.sleep(0)
    assert taken == [["gone"]] * 3


def test_whoever_repeats_a_request_is_not_held_beyond_the_deadline() -> None:
    client = Client(structs.replace(SETTINGS, failover_wait_ms=20_000), connect("redis://127.0.0.1:1"))
    with pytest.raises(BackendUnavailable), gevent.Timeout(10):
        client._outcome_of(Repeated("first"), Pending("again", time.monotonic() + 0.1))


def test_an_error_while_it_is_sent_again_does_not_end_the_outbox() -> None:
    outbox = FakeOutbox()
    waiting = outbox.ask("lost")
    outbox.waiting = outbox._next()
    outbox.ask("next")
    # As from a script's answer of another length.
    outbox._recogniser.lost = lambda outs: []  # type: ignore[method-assign]
    outbox.send_again()
    greenlet = gevent.spawn(outbox._run)
    try:
        for _ in range(5):
            gevent.sleep(0)
        assert not greenlet.dead
        assert outbox.sent == [[10_000]]
        assert not waiting.done
    finally:
        greenlet.kill()


class FakeSubscription:
    """A connection that confirms the subscription, and then breaks."""

    def __init__(self, channel: str) -> None:
        self._messages = [[b"subscribe", channel.encode(), 1]]

    def send_command(self, *command: str) -> None:
        pass

    def disconnect(self) -> None:
        pass

    def read_response(self, **options: Any) -> Any:
        if not self._messages:
            raise LOST
        return self._messages.pop()


class FakeRedis:
    """A server that is loading its data at the first reads."""

    connection_pool = None

    def __init__(self, reads: Sequence[Exception | None]) -> None:
        self._reads = iter(reads)

    def mget(self, names: Sequence[str]) -> list[None]:
        error = next(self._reads)
        if error is not None:
            raise error
        return [None for _ in names]


def test_a_new_server_is_asked_what_it_has_even_if_it_was_still_loading_when_it_was_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    redis: Any = FakeRedis([None, BusyLoadingError("loading"), BusyLoadingError("loading"), None, None])
    router = Router(redis, "f", on_new_server=lambda: asked.append("what it has"))
    router.expect("waits", LIMIT_S)
    servers = iter(["old", "new", "new", "new", "new"])
    monkeypatch.setattr("tasks.client.router.dedicated_connection", lambda pool: FakeSubscription(router.channel))
    monkeypatch.setattr("tasks.client.router.run_id", lambda connection: next(servers))
    told = []
    for _ in range(5):
        router._connect()
        with pytest.raises(RedisConnectionError):
            router._read_until_broken()
        told.append(len(asked))
    assert told == [0, 0, 0, 1, 1], "once, as soon as it can tell"


def test_what_is_kept_of_a_request_that_nobody_forgets_is_dropped_at_its_deadline() -> None:
    now = 0.0
    router = Router(connect("redis://127.0.0.1:1"), "f", clock=lambda: now)
    router.keep(router.expect("killed", LIMIT_S), object(), 100)
    assert router.kept_bytes == 100
    now = LIMIT_S
    router._sweep_until(now)
    assert router.kept_bytes == 0


def test_a_quota_that_is_spent_for_long_stays_so_when_a_request_is_sent_again() -> None:
    keys = Shard()
    quota = Quota.of("key", rpm=1, burst=10_000)
    submission = Submission("m", ANYBODY, b"1", LIMIT_S)
    out = Outgoing("lost", submission, keys.queue("m", Tier.PAID), 10_000, 2000, 60_000, quota=quota)
    row = LenientArgs(SETTINGS, keys).of_class(out, 1, {})
    spent_us = quota.burst * quota.interval_us
    assert Gcra(row.interval_us, row.burst).take(spent_us, 0) == Take(allowed=True, tat_us=spent_us + 1)


def test_whoever_waits_for_a_replica_is_told_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    confirmation = Confirmation(connect("redis://127.0.0.1:1"), Shard(), "f")

    def fail(keys: Sequence[str]) -> list[bool]:
        raise ValueError

    monkeypatch.setattr(confirmation, "_round", fail)
    with pytest.raises(BackendUnavailable), gevent.Timeout(5):
        confirmation.confirm("key")
    assert not confirmation._asking

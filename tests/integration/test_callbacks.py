"""The sender of callbacks against real receivers and a real Redis; its turns are made one by one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from cli.supervisor.ports import free_port
from config.allowed_hosts import Target
from config.keys import Shard
from config.settings import Settings
from config.tiers import Tier
from docs.examples.callback_receiver import is_genuine
from tasks.callbacks import delivery
from tasks.callbacks.sender import Sender
from tasks.callbacks.store import KEEP_MS, RETRIED_S, CallbackStore
from tasks.fleet.dead_letters import DeadLetters
from tasks.observability import metrics
from tasks.observability.explain import explain
from tests.fakes.receiver import Receiver, receiving
from tests.shards import places_of
from tests.waiting import wait_until

KEYS = Shard()
SECRET = "a secret of the tests"
SETTINGS = Settings(callback_hosts="127.0.0.1, *.partner.example", callback_secret=SECRET, metrics="off")
ANSWER = {"task_id": "t1", "status": "SUCCESS", "completed_at": "2026-01-01T00:00:00", "output": [1, 2.5, "ü"]}


class Time:
    """Epoch seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A sender whose attempts have a short limit, and whatever is owed is due. `called` has each attempt's port."""

    def __init__(self, redis: Redis, **options: Any) -> None:
        self.redis = redis
        self.called: list[int] = []
        self.time = Time()
        self.store = CallbackStore(places_of(redis))
        self.sender = self.another(**options)

    def another(
        self, resolve: Any = delivery.resolve, timeout_s: float = 5.0, lease_ttl_ms: int = 5000, stuck: int = 0
    ) -> Sender:
        """Whoever listens on the port `stuck` is given little time."""

        def deliver(target: Target, *request: Any) -> None:
            self.called.append(target.port)
            limit_s = 0.5 if target.port == stuck else timeout_s
            delivery.deliver(target, *request, timeout_s=limit_s, resolve=resolve)

        settings = Settings(
            callback_hosts=SETTINGS.callback_hosts, callback_secret=SECRET, metrics="off", lease_ttl_ms=lease_ttl_ms
        )
        return Sender(settings, places_of(self.redis), deliver=deliver, clock=self.time, chance=lambda: 0.0)

    def owe(self, url: str, task_id: str = "t1", *, finished: bool = True) -> None:
        self.store.owe(task_id, url, "echo", Tier.PAID, 10.0, self.time.now)
        if finished:
            self.finish(task_id)

    def finish(self, task_id: str = "t1") -> None:
        result = {
            "status": "SUCCESS",
            "result": ANSWER["output"],
            "traceback": None,
            "children": [],
            "date_done": ANSWER["completed_at"],
            "task_id": task_id,
            "bunch": {},
        }
        self.redis.set(KEYS.result(task_id), json.dumps(result), px=KEEP_MS)
        self.store.finished(task_id)

    def turn(self, sender: Sender | None = None) -> int:
        """One turn, until its attempts have ended."""
        sender = sender or self.sender
        started = sender.turn(wait_s=0.01)
        wait_until(lambda: not sender._under_way)
        wait_until(lambda: not any(each.name == "callback" for each in _threads()))
        return started

    def again(self) -> int:
        """The next attempt, as if its pause were over."""
        self.time.now += 301
        self.store.finished("t1")
        return self.turn()

    def score(self) -> float | None:
        return self.redis.zscore(KEYS.callbacks(), "t1")


def _threads() -> Any:
    import threading

    return threading.enumerate()


@pytest.fixture
def rig(redis: Redis) -> Rig:
    return Rig(redis)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as each:
        yield each


def counted(outcome: str) -> float:
    return metrics.CALLBACKS.labels(outcome)._value.get()


def test_a_result_is_pushed_signed_as_the_result_is_read(rig: Rig, receiver: Receiver) -> None:
    rig.owe(receiver.url)
    assert rig.turn() == 1
    (sent,) = receiver.sent
    assert sent.path == "/hook?token=s3cret"
    assert json.loads(sent.body) == ANSWER
    assert sent.headers["content-type"] == "application/json"
    assert is_genuine(SECRET, sent.headers["bunch-signature"], sent.body, rig.time.now)
    assert rig.score() is None
    assert rig.turn() == 0
    assert rig.redis.pttl(KEYS.result("t1")) <= SETTINGS.result_ttl_ms
    told = explain(places_of(rig.redis), ["echo"], "t1")["callback"]
    assert (told["status"], told["attempts"], told["host"]) == ("delivered", 1, f"127.0.0.1:{receiver.port}")


def test_nothing_is_pushed_before_there_is_an_outcome(rig: Rig, receiver: Receiver) -> None:
    rig.owe(receiver.url, finished=False)
    assert rig.score() - rig.redis.time()[0] * 1000 > 5000
    rig.redis.set(KEYS.result("t1"), '{"status":"PENDING","result":null,"task_id":"t1"}')
    rig.store.finished("t1")
    rig.turn()
    assert not receiver.sent
    assert rig.score() > 0
    rig.finish()
    rig.turn()
    assert len(receiver.sent) == 1


def test_a_receiver_that_is_down_gets_it_once_it_is_up(rig: Rig, receiver: Receiver) -> None:
    port = free_port()
    rig.owe(f"http://127.0.0.1:{port}/hook")
    retried = counted("retried")
    rig.turn()
    assert counted("retried") == retried + 1
    assert "refused" in explain(places_of(rig.redis), ["echo"], "t1")["callback"]["error"]
    with receiving(port) as back:
        rig.again()
        assert len(back.sent) == 1
    assert rig.score() is None


@pytest.mark.parametrize("status", [500, 404, 301, 307])
def test_what_is_not_taken_is_tried_again_later_and_no_redirect_is_followed(
    rig: Rig, receiver: Receiver, status: int
) -> None:
    with receiving() as elsewhere:
        receiver.statuses[:] = [status, 200]
        receiver.headers["Location"] = elsewhere.url
        rig.owe(receiver.url)
        rig.turn()
        assert rig.turn() == 0, "not before its pause is over"
        assert f"status {status}" in explain(places_of(rig.redis), ["echo"], "t1")["callback"]["error"]
        assert rig.again() == 1
        assert not elsewhere.sent
    first, second = receiver.sent
    assert first.body == second.body
    assert first.headers["bunch-signature"] != second.headers["bunch-signature"]
    assert rig.score() is None


def test_a_receiver_may_say_when_to_come_again(rig: Rig, receiver: Receiver) -> None:
    receiver.statuses[:] = [503]
    receiver.headers["Retry-After"] = "120"
    rig.owe(receiver.url)
    rig.turn()
    assert 100_000 < rig.score() - rig.redis.time()[0] * 1000 < 140_000


def test_a_receiver_that_hangs_holds_up_no_other(redis: Redis, receiver: Receiver) -> None:
    with receiving() as stuck:
        rig = Rig(redis, stuck=stuck.port)
        stuck.hangs.set()
        for number in range(30):
            rig.owe(stuck.url, f"stuck{number}")
        rig.owe(receiver.url)
        wait_until(lambda: rig.sender.turn(wait_s=0.01) is not None and receiver.sent)
        assert rig.called.count(stuck.port) <= 4
        rig.turn()
        assert rig.called.count(stuck.port) == 4
        rig.time.now += 0.5
        for number in range(30):
            rig.store.finished(f"stuck{number}")
        rig.turn()
        assert rig.called.count(stuck.port) == 4, "the host is closed"
        assert rig.redis.zcard(KEYS.callbacks()) == 30
        rig.time.now += 301
        for number in range(30):
            rig.store.finished(f"stuck{number}")
        rig.turn()
        assert rig.called.count(stuck.port) == 5, "one finds out whether it is back"


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254"])
def test_a_name_that_leads_to_a_private_address_gets_nothing(redis: Redis, receiver: Receiver, address: str) -> None:
    rig = Rig(redis, resolve=lambda host, port: ["93.184.215.14", address])
    rig.owe(f"https://evil.partner.example:{receiver.port}/")
    rig.turn()
    assert not receiver.sent
    (letter,) = DeadLetters(places_of(redis)).newest()
    assert address in letter.reason
    assert rig.score() is None


def test_the_address_that_was_checked_is_the_one_that_is_called(redis: Redis, receiver: Receiver) -> None:
    asked = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    rig = Rig(redis, resolve=resolve)
    rig.owe(receiver.url)
    rig.turn()
    assert (len(receiver.sent), asked) == (1, ["127.0.0.1"])


def test_after_an_hour_it_is_a_dead_letter_which_a_replay_sends_again(rig: Rig, receiver: Receiver) -> None:
    receiver.statuses[:] = [500]
    rig.owe(receiver.url)
    rig.turn()
    rig.time.now += RETRIED_S
    assert rig.again() == 1
    assert rig.score() is None
    letters = DeadLetters(places_of(rig.redis))
    (letter,) = letters.newest()
    assert (letter.id, letter.model, letter.tier, letter.attempts) == ("callback:t1", "echo", "paid", 2)
    assert "status 500" in letter.reason
    assert "s3cret" not in letter.reason
    assert json.loads(letters.show("callback:t1")[1]) == ANSWER
    assert explain(places_of(rig.redis), ["echo"], "t1")["callback"]["status"] == "given up"

    rig.redis.delete(KEYS.result("t1"))
    receiver.statuses[:] = [200]
    assert letters.replay("callback:t1", 1.0, 1.0)
    assert not letters.replay("callback:t1", 1.0, 1.0)
    rig.turn()
    assert json.loads(receiver.sent[-1].body) == ANSWER
    assert (letters.ids(), rig.score()) == ([], None)


def test_a_host_that_never_answers_is_given_up_too(rig: Rig) -> None:
    url = f"http://127.0.0.1:{free_port()}/hook"
    rig.owe(url)
    rig.owe(url, "t2")
    rig.turn()
    rig.time.now += RETRIED_S + 20
    rig.store.finished("t1")
    rig.turn()
    rig.store.finished("t2")
    rig.turn()
    assert sorted(each.id for each in DeadLetters(places_of(rig.redis)).newest()) == ["callback:t1", "callback:t2"]


@pytest.mark.parametrize("status", [410])
def test_a_receiver_that_is_gone_is_not_asked_again(rig: Rig, receiver: Receiver, status: int) -> None:
    receiver.statuses[:] = [status]
    rig.owe(receiver.url)
    rig.turn()
    assert DeadLetters(places_of(rig.redis)).ids() == ["callback:t1"]


def test_a_host_that_was_taken_from_the_list_gets_nothing(rig: Rig, receiver: Receiver) -> None:
    rig.owe(f"http://localhost:{receiver.port}/")
    rig.turn()
    assert not receiver.sent
    assert "not among the hosts" in DeadLetters(places_of(rig.redis)).newest()[0].reason


def test_a_result_that_was_deleted_is_not_pushed(rig: Rig, receiver: Receiver) -> None:
    lost = counted("lost")
    rig.owe(receiver.url)
    rig.redis.delete(KEYS.result("t1"))
    rig.turn()
    assert not receiver.sent
    assert (rig.score(), counted("lost")) == (None, lost + 1)


def test_a_url_that_a_repetition_has_named_meanwhile_is_still_owed(rig: Rig) -> None:
    rig.owe("http://127.0.0.1:1/first")
    (first,) = rig.store.read(["t1"])
    assert first is not None
    rig.owe("http://127.0.0.1:1/second")
    rig.store.delivered("t1", first, 1000, rig.time.now)
    rig.store.bury("t1", first, b"{}", "gone", rig.time.now)
    found = rig.store.find("t1")
    assert found is not None
    assert (found[0].url, found[1]) == ("http://127.0.0.1:1/second", 0)
    rig.store.delivered("t1", found[0], 1000, rig.time.now)
    assert rig.redis.zcard(KEYS.callbacks()) == 0


def test_two_senders_send_each_result_once(rig: Rig, receiver: Receiver) -> None:
    other = rig.another()
    for number in range(20):
        rig.owe(receiver.url, f"t{number}")
    wait_until(lambda: rig.turn() + rig.turn(other) + rig.redis.zcard(KEYS.callbacks()) == 0)
    assert sorted(json.loads(each.body)["task_id"] for each in receiver.sent) == sorted(f"t{n}" for n in range(20))


def test_what_a_dead_sender_had_taken_is_sent_by_another(rig: Rig, receiver: Receiver) -> None:
    rig.owe(receiver.url)
    taken = rig.store.take(10, 60.0)
    assert taken.ids == ["t1"]
    assert rig.score() == taken.now_ms + 60_000
    assert rig.turn() == 0
    # Its lease has ended.
    rig.redis.zadd(KEYS.callbacks(), {"t1": rig.redis.time()[0] * 1000})
    assert rig.turn() == 1
    assert len(receiver.sent) == 1


def test_a_sender_that_can_start_no_thread_for_now_keeps_nothing_for_itself(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    rig.owe("http://127.0.0.1:1/")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        rig.sender.turn(wait_s=0.01)
    assert not rig.sender._under_way
    assert not rig.sender._gates.hosts


def test_a_lease_is_kept_as_long_as_its_sender_works(redis: Redis, receiver: Receiver) -> None:
    rig = Rig(redis, lease_ttl_ms=4000, timeout_s=60.0)
    other = rig.another()
    receiver.hangs.set()
    rig.owe(receiver.url)
    rig.sender.turn(wait_s=0.01)
    before = rig.score()

    def renewed() -> bool:
        rig.sender.turn(wait_s=0.2)
        assert other.turn(wait_s=0.01) == 0
        return rig.score() > before + 1500

    wait_until(renewed)
    assert len(receiver.sent) == 1
    receiver.released.set()
    wait_until(lambda: not rig.sender._under_way)


def test_the_thread_of_the_ops_worker_sends_what_becomes_due_and_ends(redis: Redis, receiver: Receiver) -> None:
    rig = Rig(redis)
    rig.sender.start()
    try:
        rig.owe(receiver.url, finished=False)
        rig.finish()
        wait_until(lambda: rig.score() is None)
        assert len(receiver.sent) == 1
    finally:
        rig.sender.stop()
    assert not rig.sender._thread.is_alive()

"""Nothing stays behind when a wait ends, however it ends.

In Celery subscriptions and pending results grow with every wait that times out (celery/celery#5320, #8166).
"""

from __future__ import annotations

import gc
import time
from functools import partial

import gevent

from tasks.errors import DeadlineExceeded, ShuttingDown
from tasks.protocol.results import Reply
from tests.fakes.worker import finish
from tests.gevent_scenarios.frontend_fixture import (
    LONG_S,
    NOBODY,
    SOON_S,
    FrontendFixture,
    all_of,
    asking,
    channels_of,
    clients_of,
    error_of,
    output,
    wait_all,
)
from tests.shards import servers_of
from tests.waiting import wait_until


def ten_thousand_requests_of_which_a_fifth_time_out(frontend: FrontendFixture) -> None:
    load(frontend, rounds=10)
    gevent.sleep(0.2)
    before = objects()
    load(frontend, rounds=50)
    # Requests that nobody waits for any more are answered nevertheless.
    while frontend.serve():
        pass

    assert frontend.client.waiting == 0
    assert frontend.channels() == frontend.own_channels()
    assert [frontend.listeners(each) for each in frontend.own_channels()] == [1] * len(frontend.own_channels())
    # The client of each place holds its last flush.
    wait_until(lambda: objects() - before < 500 * len(clients_of(frontend.client)), "all is released")


def load(frontend: FrontendFixture, rounds: int) -> None:
    def caller(number: int) -> None:
        for i in range(rounds):
            if i % 5 == 0:
                error = error_of(partial(frontend.ask, number, NOBODY, timeout_s=0.1))
                assert type(error) is DeadlineExceeded
            else:
                assert frontend.ask(number) == {"echo": number}

    all_of(partial(caller, number) for number in range(200))


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def the_shortest_deadlines_end_too(frontend: FrontendFixture) -> None:
    began = time.monotonic()
    timeouts = [0.001, 0.01, 0.049, 0.05, 0.051, 0.075, 0.099, 0.1, 0.101, 0.15] * 5
    errors = all_of(partial(error_of, partial(frontend.ask, 1, NOBODY, timeout_s=timeout_s)) for timeout_s in timeouts)
    assert {type(each) for each in errors} == {DeadlineExceeded}
    assert time.monotonic() - began < SOON_S
    assert frontend.client.waiting == 0


def a_busy_process_forgets_no_deadline(frontend: FrontendFixture) -> None:
    """Whole ticks pass unseen while one greenlet holds the interpreter."""
    waits = [gevent.spawn(error_of, partial(frontend.ask, 1, NOBODY, timeout_s=0.15 + i / 100)) for i in range(40)]
    for _ in range(12):
        gevent.sleep(0)
        until_s = time.monotonic() + 0.07
        while time.monotonic() < until_s:
            pass
        gevent.sleep(0.001)
    gevent.joinall(waits, timeout=SOON_S, raise_error=True)
    assert all(each.ready() for each in waits)
    assert frontend.client.waiting == 0


def a_killed_caller_leaves_nothing(frontend: FrontendFixture) -> None:
    waiting = [gevent.spawn(frontend.ask, i, NOBODY) for i in range(50)]
    waiting += [gevent.spawn(frontend.client.result, "foreign", 30.0) for _ in range(5)]
    wait_until(lambda: frontend.depth() == 50)
    gevent.killall(waiting)
    assert frontend.client.waiting == 0
    wait_until(lambda: frontend.channels() == frontend.own_channels())
    # Nobody waits for their answers.
    frontend.serve()
    assert frontend.ask("still well") == {"echo": "still well"}


def a_killed_caller_of_many_leaves_nothing(frontend: FrontendFixture) -> None:
    def bulk() -> None:
        wait_all(frontend, [frontend.submit(i, NOBODY, timeout_s=1.0) for i in range(20)])

    waiting = gevent.spawn(bulk)
    wait_until(lambda: frontend.depth() == 20)
    waiting.kill()
    # Those that it had not come to yet go with their deadline.
    wait_until(lambda: frontend.client.waiting == 0)


def a_submission_that_fails_leaves_nothing(frontend: FrontendFixture) -> None:
    for bad in (
        asking("no-such-model", b"1", timeout_s=5.0),
        asking(NOBODY, b"\xff", timeout_s=5.0),
    ):
        try:
            frontend.client.submit(bad)
        except (LookupError, ValueError):
            pass
        else:
            raise AssertionError("it went through")
    assert frontend.client.waiting == 0


def watching_a_foreign_id_leaves_no_subscription(frontend: FrontendFixture) -> None:
    other = frontend.make_client()
    pending = other.submit(asking(NOBODY, b'"x"', waits=False))
    task_id = other.receipt(pending)
    own = {*frontend.own_channels(), *channels_of(other)}

    reply = frontend.client.result(task_id, wait_s=0.2)
    assert reply is not None
    assert reply.status == "PENDING"
    assert frontend.client.waiting == 0
    wait_until(lambda: set(frontend.channels()) == own, "the subscription ended")

    watchers = [gevent.spawn(frontend.client.result, task_id, LONG_S) for _ in range(3)]
    wait_until(lambda: len(set(frontend.channels()) - own) == 1)
    began = time.monotonic()
    frontend.serve()
    gevent.joinall(watchers, timeout=SOON_S, raise_error=True)
    assert [output(each.value) for each in watchers] == [{"echo": "x"}] * 3
    assert time.monotonic() - began < SOON_S
    assert frontend.client.waiting == 0
    wait_until(lambda: set(frontend.channels()) == own, "the subscription ended")


def watching_does_not_miss_what_happens_meanwhile(frontend: FrontendFixture) -> None:
    """The result is stored between the first look and the subscription, or at any other moment."""
    for i in range(40):
        task_id = frontend.client.receipt(frontend.submit(i, waits=False))
        reply = frontend.client.result(task_id, wait_s=LONG_S)
        assert isinstance(reply, Reply)
        assert output(reply) == {"echo": i}


def watching_survives_a_lost_subscription(frontend: FrontendFixture) -> None:
    task_id = frontend.client.receipt(frontend.submit("x", NOBODY, waits=False))
    watcher = gevent.spawn(frontend.client.result, task_id, LONG_S)
    wait_until(lambda: len(set(frontend.channels()) - set(frontend.own_channels())) == 1)
    claim = frontend.store.claim(NOBODY, "b1", 1)
    frontend.redis.client_kill_filter(_type="pubsub")
    finish(frontend.store, claim)
    began = time.monotonic()
    assert output(watcher.get(timeout=SOON_S)) == {"echo": "x"}
    assert time.monotonic() - began < SOON_S
    wait_until(lambda: frontend.channels() == frontend.own_channels())


def an_unknown_id_is_not_waited_for(frontend: FrontendFixture) -> None:
    began = time.monotonic()
    assert frontend.client.result("never-issued", wait_s=LONG_S) is None
    assert time.monotonic() - began < SOON_S


def hundreds_may_ask_for_results_at_once(frontend: FrontendFixture) -> None:
    """More at once than the client has connections."""
    task_id = frontend.client.receipt(frontend.submit("x", waits=False))
    assert frontend.client.result(task_id, wait_s=LONG_S) is not None
    replies = all_of(partial(frontend.client.result, task_id) for _ in range(400))
    assert {output(each)["echo"] for each in replies} == {"x"}
    assert set(all_of(partial(frontend.client.cancel, task_id) for _ in range(400))) == {"SUCCESS"}
    assert max(len(each.client_list()) for each in servers_of(frontend.redis)) < 100


def a_stopped_client_lets_everybody_go(frontend: FrontendFixture) -> None:
    client = frontend.make_client()
    wait_until(lambda: client.connected)
    pendings = [client.submit(asking(NOBODY, b"1")) for _ in range(3)]
    waiting = [gevent.spawn(error_of, partial(client.wait, each)) for each in pendings]
    wait_until(lambda: frontend.depth() == 3)
    client.stop()
    began = time.monotonic()
    gevent.joinall(waiting, timeout=SOON_S)
    assert [type(each.value) for each in waiting] == [ShuttingDown] * 3
    assert time.monotonic() - began < SOON_S
    wait_until(lambda: frontend.channels() == frontend.own_channels(), "its subscription ended")


def a_client_that_has_to_go_tells_those_who_wait_and_those_who_come(frontend: FrontendFixture) -> None:
    client = frontend.make_client()
    wait_until(lambda: client.connected)
    polled = client.receipt(client.submit(asking(NOBODY, b"1", waits=False)))
    watching = gevent.spawn(client.result, polled, LONG_S)
    waiting = gevent.spawn(error_of, partial(client.wait, client.submit(asking(NOBODY, b"1"))))
    wait_until(lambda: frontend.depth() == 2)
    client.refuse()
    began = time.monotonic()
    late = error_of(lambda: client.wait(client.submit(asking(NOBODY, b"1"))))
    gevent.joinall([waiting, watching], timeout=SOON_S, raise_error=True)
    assert [type(waiting.value), type(late)] == [ShuttingDown] * 2
    assert watching.value.status == "PENDING"
    # Whoever was refused asks again elsewhere; the one that is polled for is somebody's still.
    wait_until(lambda: frontend.cancelled() == 2)
    assert not frontend.is_cancelled(polled)
    assert time.monotonic() - began < SOON_S
    assert client.waiting == 0

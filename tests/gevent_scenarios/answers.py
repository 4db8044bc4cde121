"""Requests and their answers."""

from __future__ import annotations

import time
from functools import partial

from config.tiers import Tier
from tasks.errors import (
    CallerGone,
    DeadlineExceeded,
    InferenceFailed,
    InputRejected,
    ServiceOverloaded,
    TaskCancelled,
)
from tasks.protocol.results import Reply, decode_details
from tests.fakes.worker import finish
from tests.gevent_scenarios.frontend_fixture import (
    NOBODY,
    SERVED,
    SMALL,
    SOON_S,
    FrontendFixture,
    all_of,
    asking,
    error_of,
    found_by_the_last_look,
    output,
    wait_all,
)
from tests.waiting import wait_until


def every_answer_belongs_to_its_question(frontend: FrontendFixture) -> None:
    def caller(number: int) -> None:
        for i in range(7):
            question = f"{number}.{i}"
            assert frontend.ask(question) == {"echo": question}

    all_of(partial(caller, number) for number in range(300))
    assert frontend.client.waiting == 0
    # One flush for all requests of a turn of the event loop, not one each.
    assert frontend.flushes() < 2100 / 3


def all_of_one_turn_go_in_one_flush(frontend: FrontendFixture) -> None:
    before = frontend.flushes()
    pendings = [frontend.submit(i, NOBODY) for i in range(100)]
    wait_until(lambda: frontend.depth() == 100)
    assert frontend.flushes() == before + 1
    assert frontend.serve() == 100
    assert [output(frontend.client.wait(each)) for each in pendings] == [{"echo": i} for i in range(100)]


def the_answer_tells_about_its_batch(frontend: FrontendFixture) -> None:
    pendings = [frontend.submit(i, NOBODY) for i in range(3)]
    wait_until(lambda: frontend.depth() == 3)
    frontend.serve()
    details = [decode_details(frontend.client.wait(each).bunch) for each in pendings]
    assert {(each.batch_size, each.tier, each.attempt) for each in details} == {(3, "paid", 1)}
    assert all(each.queue_ms >= 0 for each in details)


def errors_keep_their_names_and_their_neighbours(frontend: FrontendFixture) -> None:
    inputs = ["fine", {"do": "reject", "text": "not é"}, {"do": "fail", "text": "broke"}, "fine too"]
    pendings = [frontend.submit(each, NOBODY) for each in inputs]
    wait_until(lambda: frontend.depth() == 4)
    frontend.serve()
    first, rejected, failed, last = wait_all(frontend, pendings)
    assert isinstance(first, Reply)
    assert isinstance(last, Reply)
    assert (type(rejected), str(rejected)) == (InputRejected, "not é")
    assert (type(failed), str(failed)) == (InferenceFailed, "broke")
    assert frontend.client.waiting == 0


def a_full_queue_refuses_at_once(frontend: FrontendFixture) -> None:
    pendings = [frontend.submit(i, SMALL, waits=False) for i in range(5)]
    receipts = [frontend.client.receipt(each) for each in pendings[:3]]
    assert receipts == [each.task_id for each in pendings[:3]]
    for pending in pendings[3:]:
        error = error_of(partial(frontend.client.receipt, pending))
        assert type(error) is ServiceOverloaded
        assert error.retry_after_s
    began = time.monotonic()
    assert type(error_of(partial(frontend.ask, 6, SMALL))) is ServiceOverloaded
    assert time.monotonic() - began < SOON_S
    assert frontend.depth(SMALL) == 3
    assert frontend.client.result(pendings[4].task_id) is None


def a_receipt_comes_before_the_answer(frontend: FrontendFixture) -> None:
    task_id = frontend.client.receipt(frontend.submit("x", NOBODY, waits=False))
    assert frontend.depth() == 1
    assert frontend.client.waiting == 0
    state = frontend.client.result(task_id)
    assert state is not None
    assert state.status == "PENDING"
    frontend.serve()
    state = frontend.client.result(task_id)
    assert state is not None
    assert output(state) == {"echo": "x"}


def a_reply_that_got_lost_is_found_by_the_last_look(frontend: FrontendFixture) -> None:
    assert found_by_the_last_look(frontend, {"do": "whisper"}) == {"echo": {"do": "whisper"}}
    assert frontend.client.waiting == 0


def an_answer_may_be_there_before_the_frontend_listens(frontend: FrontendFixture) -> None:
    for _ in range(5):
        client = frontend.make_client()
        assert not client.connected
        assert output(client.wait(client.submit(asking(SERVED, b"1")))) == {"echo": 1}


def large_results_come_by_reference(frontend: FrontendFixture) -> None:
    sizes = [60_000, 70_000, 3_000_000]
    heard = [len(each) for each in all_of(partial(frontend.ask, {"do": "grow", "size": size}) for size in sizes)]
    assert heard == sizes


def a_lost_subscription_costs_nobody_an_answer(frontend: FrontendFixture) -> None:
    pendings = [frontend.submit(i, NOBODY) for i in range(100)]
    wait_until(lambda: frontend.depth() == 100)
    for number in range(5):
        wait_until(lambda: frontend.client.connected)
        claim = frontend.store.claim(NOBODY, f"b{number}", 20)
        assert len(claim.entries) == 20
        frontend.redis.client_kill_filter(_type="pubsub")
        # At once, while nobody listens.
        finish(frontend.store, claim)
    began = time.monotonic()
    for i, pending in enumerate(pendings):
        assert output(frontend.client.wait(pending)) == {"echo": i}
    assert time.monotonic() - began < SOON_S

    finish(frontend.store, claim)


def a_script_that_redis_forgot_is_loaded_again(frontend: FrontendFixture) -> None:
    assert frontend.ask("before") == {"echo": "before"}
    frontend.redis.script_flush()
    assert frontend.ask("after") == {"echo": "after"}
    frontend.redis.script_flush()
    assert frontend.client.cancel("unknown") == ""


def what_waits_can_be_taken_back(frontend: FrontendFixture) -> None:
    task_id = frontend.client.receipt(frontend.submit("x", NOBODY, waits=False))
    assert frontend.client.cancel(task_id) == "PENDING"
    assert status(frontend, task_id) == "REVOKED"
    assert frontend.client.cancel(task_id) == "REVOKED"
    assert frontend.serve() == 1
    assert status(frontend, task_id) == "REVOKED"


def whoever_waits_for_what_is_taken_back_is_told(frontend: FrontendFixture) -> None:
    pending = frontend.submit("x", NOBODY, request_id="the-callers-own")
    wait_until(lambda: frontend.depth() == 1)
    assert frontend.client.task_of("the-callers-own") == pending.task_id
    assert frontend.client.cancel(pending.task_id) == "PENDING"
    frontend.serve()
    assert type(error_of(partial(frontend.client.wait, pending))) is TaskCancelled


def what_has_started_or_finished_is_not_taken_back(frontend: FrontendFixture) -> None:
    task_id = frontend.client.receipt(frontend.submit("x", NOBODY, waits=False))
    claim = frontend.store.claim(NOBODY, "b1", 1)
    assert frontend.client.cancel(task_id) == "STARTED"
    finish(frontend.store, claim)
    assert frontend.client.cancel(task_id) == "SUCCESS"
    assert status(frontend, task_id) == "SUCCESS"
    assert frontend.client.cancel("never-issued") == ""


def callers_who_hang_up_are_not_computed_for(frontend: FrontendFixture) -> None:
    gone = [False]
    pending = frontend.submit("x", NOBODY, hung_up=lambda: gone[0])
    staying = frontend.submit("y", NOBODY, hung_up=lambda: False)
    wait_until(lambda: frontend.depth() == 2)
    gone[0] = True
    assert type(error_of(partial(frontend.client.wait, pending))) is CallerGone
    wait_until(lambda: frontend.cancelled() == 1)
    claim = frontend.store.claim(NOBODY, "b1", 2)
    assert sorted(each.verdict.name for each in claim.entries) == ["CANCELLED", "RUN"]
    finish(frontend.store, claim)
    assert output(frontend.client.wait(staying)) == {"echo": "y"}


def results_are_kept_as_long_as_was_promised(frontend: FrontendFixture) -> None:
    waited = frontend.submit(1, NOBODY, waits=True)
    polled = frontend.submit(2, NOBODY, waits=False)
    wait_until(lambda: frontend.depth() == 2)
    frontend.serve()
    frontend.client.wait(waited)
    assert _ttl_ms(frontend, waited.task_id) <= frontend.settings.sync_result_ttl_ms
    assert frontend.settings.sync_result_ttl_ms < _ttl_ms(frontend, polled.task_id) <= frontend.settings.result_ttl_ms


def tiers_have_queues_of_their_own(frontend: FrontendFixture) -> None:
    pendings = [frontend.client.submit(asking(NOBODY, b"1", tier)) for tier in Tier]
    wait_until(lambda: frontend.depth() == 3)
    assert frontend.depths(NOBODY) == (1, 1, 1)
    frontend.serve()
    assert [decode_details(frontend.client.wait(each).bunch).tier for each in pendings] == [tier.value for tier in Tier]


def a_deadline_ends_the_wait(frontend: FrontendFixture) -> None:
    began = time.monotonic()
    assert type(error_of(partial(frontend.ask, 1, NOBODY, timeout_s=0.5))) is DeadlineExceeded
    assert 0.4 < time.monotonic() - began < SOON_S


def status(frontend: FrontendFixture, task_id: str) -> str:
    reply = frontend.client.result(task_id)
    assert reply is not None
    return reply.status


def _ttl_ms(frontend: FrontendFixture, task_id: str) -> int:
    return frontend.redis.pttl(frontend.result_key(task_id))

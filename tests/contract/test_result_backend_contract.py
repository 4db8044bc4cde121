"""The contract of a result backend with a Celery program: Celery's Redis backend and ours.

Outside gevent; `tests/gevent_scenarios/celery_results.py` has what is to be said under it, and
`tests/integration/test_celery_backend.py` a chord and the results of batched tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, GroupResult
from redis import Redis

from bunch.celery_backend import BunchBackend
from tests.fakes.result_backends import Both, both_of
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

CELERYS = "celery.backends.redis:RedisBackend"
OURS = "bunch.celery_backend:BunchBackend"
PATIENCE_S = 60.0

# Celery's own way to store a result.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture(params=[CELERYS, OURS], ids=["celery", "bunch"])
def both(request: pytest.FixtureRequest, valkey: PrivateValkey, redis: Redis) -> Iterator[Both]:
    with both_of(valkey, redis, request.param) as both:
        yield both


@pytest.fixture
def ours(valkey: PrivateValkey, redis: Redis) -> Iterator[Both]:
    with both_of(valkey, redis, OURS) as both:
        yield both


def get(result: Any, **options: Any) -> Any:
    return result.get(**{"timeout": PATIENCE_S} | options)


def test_get_waits_for_the_value(both: Both) -> None:
    result = both.result()
    assert (result.state, result.ready(), result.exists()) == ("PENDING", False, False)
    waiting = both.start(lambda: get(result), result.id)
    both.done(result.id, {"a": [1, None, "é"]})
    assert waiting.result(PATIENCE_S) == {"a": [1, None, "é"]}
    assert (result.state, result.ready(), result.successful(), result.failed()) == ("SUCCESS", True, True, False)
    wait_until(lambda: both.waited_for() == [], "nobody listens any more")


def test_what_has_finished_is_returned_without_a_message(both: Both) -> None:
    result = both.result()
    both.done(result.id, 7)
    assert (get(result), both.result(result.id).result) == (7, 7)


def test_what_is_stored_with_it_is_read_without_it_and_the_other_way_round(both: Both) -> None:
    result = both.result()
    both.app.backend.store_result(result.id, 5, "SUCCESS")
    assert AsyncResult(result.id, app=both.worker).get(timeout=PATIENCE_S) == 5
    assert both.redis.ttl(f"celery-task-meta-{result.id}") > 0


def test_two_who_wait_for_one_result_both_get_it(both: Both) -> None:
    first, second = both.result("shared"), both.result("shared")
    waiting = [both.start(lambda each=each: get(each), "shared") for each in (first, second)]
    both.done("shared", 1)
    assert [each.result(PATIENCE_S) for each in waiting] == [1, 1]


@pytest.mark.parametrize("timeout_s", [0, 0.05, 0.4])
def test_a_timeout_is_celerys_and_the_result_can_be_asked_again(both: Both, timeout_s: float) -> None:
    result = both.result()
    with pytest.raises(CeleryTimeoutError):
        result.get(timeout=timeout_s)
    both.done(result.id, "late")
    assert get(result) == "late"


def test_get_raises_what_the_task_raised(both: Both) -> None:
    result = both.result()
    waiting = both.start(lambda: get(result), result.id)
    both.done(result.id, ValueError("no", 3), "FAILURE", traceback="line 1")
    with pytest.raises(ValueError, match="no") as caught:
        waiting.result(PATIENCE_S)
    assert caught.value.args == ("no", 3)
    assert (result.failed(), result.traceback) == (True, "line 1")
    again = both.result(result.id)
    assert isinstance(get(again, propagate=False), ValueError)
    assert isinstance(again.result, ValueError)


def test_a_class_that_the_reader_has_not_is_made_under_its_name(both: Both) -> None:
    result = both.result()
    meta = '{"exc_type":"Odd","exc_message":["why"],"exc_module":"not.here"}'
    stored = f'{{"status":"FAILURE","result":{meta},"traceback":null,"children":[],"task_id":"{result.id}"}}'
    both.redis.set(f"celery-task-meta-{result.id}", stored)
    with pytest.raises(Exception, match="why") as caught:
        get(result)
    assert type(caught.value).__name__ == "Odd"


def test_a_revoked_task_raises(both: Both) -> None:
    result = both.result()
    both.done(result.id, TaskRevokedError("taken back"), "REVOKED")
    with pytest.raises(TaskRevokedError):
        get(result)


def test_a_failed_parent_is_raised_by_its_child(both: Both) -> None:
    parent, child = both.result(), both.result()
    child.parent = parent
    both.done(parent.id, KeyError("parent"), "FAILURE")
    with pytest.raises(KeyError):
        get(child)


def test_on_message_hears_of_each_state(both: Both) -> None:
    result, heard = both.result(), []
    waiting = both.start(lambda: get(result, on_message=heard.append), result.id)
    both.done(result.id, {"step": 1}, "PROGRESS")
    wait_until(lambda: "PROGRESS" in [each["status"] for each in heard], "the state in between")
    both.done(result.id, "end")
    assert waiting.result(PATIENCE_S) == "end"
    told = [each for each in heard if each["status"] != "PENDING"]
    assert [(each["status"], each["result"]) for each in told] == [("PROGRESS", {"step": 1}), ("SUCCESS", "end")]


def test_callback_and_on_interval_are_called(both: Both) -> None:
    result, called, intervals = both.result(), [], []
    waiting = both.start(
        lambda: get(result, callback=lambda *each: called.append(each), on_interval=lambda: intervals.append(1)),
        result.id,
    )
    wait_until(lambda: intervals, "an interval has passed")
    both.done(result.id, 3)
    assert waiting.result(PATIENCE_S) == 3
    assert called == [(result.id, 3)]


def test_then_is_called_when_somebody_reads(both: Both) -> None:
    watched, other, called = both.result(), both.result(), []
    watched.then(lambda each: called.append(each.result))
    waiting = both.start(lambda: get(other), other.id)
    both.done(watched.id, "watched")
    both.done(other.id, "other")
    assert waiting.result(PATIENCE_S) == "other"
    if not called:
        get(watched)
    assert called == ["watched"]


def test_a_timeout_ends_no_then(both: Both) -> None:
    result, called = both.result(), []
    result.then(lambda each: called.append(each.result))
    with pytest.raises(CeleryTimeoutError):
        result.get(timeout=0.05)
    assert any(result.id in each for each in both.app.backend._pending_results)
    both.done(result.id, 1)
    assert (get(result), called) == (1, [1])


def test_forget_removes_the_result(both: Both) -> None:
    result = both.result()
    both.done(result.id, 1)
    assert get(result) == 1
    result.forget()
    assert not both.redis.exists(f"celery-task-meta-{result.id}")
    assert (both.result(result.id).state, result.exists()) == ("PENDING", False)


def test_results_expire_as_configured(both: Both) -> None:
    def ttl(**settings: Any) -> int:
        app, task_id = both.make_app(**settings), uuid.uuid4().hex
        state = settings.pop("state", "SUCCESS")
        app.backend.store_result(task_id, ValueError() if state == "FAILURE" else 1, state)
        return int(both.redis.ttl(f"celery-task-meta-{task_id}"))

    assert 80 < ttl(result_expires=90) <= 90
    assert ttl(result_expires=None) == -1
    assert 80 < ttl(result_expires=900, result_failure_expires=90, state="FAILURE") <= 90


def test_an_ignored_result_is_not_waited_for(both: Both) -> None:
    sent = both.app.send_task("some.task", queue="nowhere", ignore_result=True)
    assert (sent.ignored, sent.get(), both.waited_for()) == (True, None, [])


def test_compressed_extended_and_prefixed_results_are_waited_for(both: Both) -> None:
    settings = {
        "result_compression": "zlib",
        "result_extended": True,
        "result_backend_transport_options": {"global_keyprefix": "theirs_"},
    }
    both.app = both.make_app(**settings)
    writer = both.make_app(**settings)
    result = both.result()
    channel = f"theirs_celery-task-meta-{result.id}"
    waiting = both.threads.submit(get, result)
    wait_until(lambda: both.redis.pubsub_numsub(channel) == [(channel.encode(), 1)], "it listens")
    writer.backend.store_result(result.id, "long " * 1000, "SUCCESS")
    assert waiting.result(PATIENCE_S) == "long " * 1000


def test_children_come_back_as_results(both: Both) -> None:
    result, child = both.result(), both.result()

    class Asked:
        group = errbacks = chord = chain = None
        children = (child,)

    both.done(child.id, "c")
    both.done(result.id, "p", request=Asked())
    assert get(result) == "p"
    assert result.children == [child]
    assert [value for _, value in result.collect()] == ["p", "c"]


def test_a_group_is_joined_in_its_order(both: Both) -> None:
    group = both.group(5)
    waiting = both.start(lambda: get(group), *(each.id for each in group))
    for number, each in reversed(list(enumerate(group))):
        both.done(each.id, number)
    assert waiting.result(PATIENCE_S) == [0, 1, 2, 3, 4]
    assert (group.completed_count(), group.successful(), group.waiting()) == (5, True, False)
    wait_until(lambda: both.waited_for() == [], "nobody listens any more")


def test_iter_native_gives_each_as_it_comes(both: Both) -> None:
    group, seen = both.group(3), []

    def collect() -> None:
        seen.extend(meta["result"] for _, meta in _noting(group.iter_native(timeout=PATIENCE_S), came))

    came: list[str] = []
    waiting = both.start(collect, *(each.id for each in group))
    for number in (2, 0, 1):
        both.done(group[number].id, number)
        wait_until(lambda number=number: group[number].id in came, "it has come before the next one")
    waiting.result(PATIENCE_S)
    assert seen == [2, 0, 1]


def _noting(pairs: Iterator[tuple[str, Any]], came: list[str]) -> Iterator[tuple[str, Any]]:
    for task_id, meta in pairs:
        came.append(task_id)
        yield task_id, meta


def test_join_native_calls_back_and_tells_on_message(both: Both) -> None:
    group, called, heard = both.group(3), {}, []
    waiting = both.start(
        lambda: group.join_native(timeout=PATIENCE_S, callback=called.__setitem__, on_message=heard.append),
        *(each.id for each in group),
    )

    def heard_of() -> list[Any]:
        both.done(group[0].id, state="STARTED")
        return heard

    # Celery's subscribes before it notes whom to tell.
    wait_until(heard_of, "it tells")
    for number, each in enumerate(group):
        both.done(each.id, number)
    assert waiting.result(PATIENCE_S) is None
    assert called == {each.id: number for number, each in enumerate(group)}
    assert {each["task_id"] for each in heard if each["status"] == "SUCCESS"} == {each.id for each in group}


def test_a_groups_failure_is_raised_and_its_timeout_is_for_all_of_it(both: Both) -> None:
    group = both.group(3)
    both.done(group[0].id, 0)
    with pytest.raises(CeleryTimeoutError):
        group.get(timeout=0.2)
    both.done(group[1].id, RuntimeError("one of them"), "FAILURE")
    both.done(group[2].id, 2)
    with pytest.raises(RuntimeError, match="one of them"):
        get(group)
    values = get(group, propagate=False)
    assert (values[0], type(values[1]), values[2]) == (0, RuntimeError, 2)


def test_a_group_in_a_group_is_joined(both: Both) -> None:
    inner, last = both.group(2), both.result()
    outer = GroupResult("outer", [inner, last], app=both.app)
    waiting = both.start(lambda: get(outer), inner[0].id, inner[1].id, last.id)
    for value, each in enumerate((*inner, last)):
        both.done(each.id, value)
    assert waiting.result(PATIENCE_S) == [[0, 1], 2]


def test_a_group_is_saved_restored_and_deleted(both: Both) -> None:
    group = both.group(2)
    group.save()
    for each in group:
        both.done(each.id, 1)
    restored = GroupResult.restore(group.id, app=both.app)
    assert restored is not None
    assert (restored, get(restored)) == (group, [1, 1])
    restored.delete()
    assert GroupResult.restore(group.id, app=both.app) is None


def test_a_connection_that_redis_closes_is_opened_again(both: Both) -> None:
    result = both.result()
    waiting = both.start(lambda: get(result), result.id)
    both.redis.client_kill_filter(_type="pubsub")
    wait_until(lambda: result.id in both.waited_for(), "it listens again")
    both.done(result.id, "after")
    assert waiting.result(PATIENCE_S) == "after"


def test_ours_misses_nothing_that_comes_before_it_listens_again(ours: Both) -> None:
    """Celery's own reads what is stored, and subscribes afterwards: what is stored in between never comes."""
    result = ours.result()
    waiting = ours.start(lambda: get(result), result.id)
    ours.redis.client_kill_filter(_type="pubsub")
    ours.done(result.id, "after")
    assert waiting.result(PATIENCE_S) == "after"


def test_ours_leaves_nothing_of_what_has_timed_out(ours: Both) -> None:
    group = ours.group(3)
    kept = [ours.result() for _ in range(3)]
    for each in (*kept, group):
        with pytest.raises(CeleryTimeoutError):
            each.get(timeout=0.02)
    wait_until(lambda: ours.waited_for() == [], "nobody listens any more")
    assert list(ours.app.backend._pending_results) == [{}, {}]


def test_ours_subscribes_to_nothing_that_is_only_sent(ours: Both) -> None:
    ours.app.send_task("some.task", queue="nowhere")
    assert ours.waited_for() == []


def test_all_threads_have_one_of_ours(ours: Both) -> None:
    # Celery makes it at the first access, without a lock: two threads that come first together make two.
    first = ours.app.backend
    assert {id(each) for each in ours.threads.map(lambda _: ours.app.backend, range(20))} == {id(first)}
    assert isinstance(ours.app.backend, BunchBackend)

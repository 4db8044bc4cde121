"""Celery's own way of asking for results, in a frontend process: through the router, and leaving nothing behind."""

from __future__ import annotations

import gc
import time
from functools import partial

import gevent
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, GroupResult

from config.celery import backend_url
from config.tiers import Tier
from tasks.app import make_app
from tasks.errors import InferenceFailed, InputRejected
from tests.fakes.worker import finish
from tests.gevent_scenarios.stage import NOBODY, Stage, all_of
from tests.waiting import wait_until

PAID = "bunch.m.paid"


def app_of(stage: Stage) -> Celery:
    app = make_app(stage.settings, result_backend=backend_url(stage.url, "tasks.backend:BunchBackend"))
    app.bunch_client = stage.client
    return app


def later(stage: Stage, value: object, model: str = NOBODY) -> str:
    """The id of a task that is queued."""
    return stage.client.receipt(stage.submit(value, model, waits=False))


def raised(result: AsyncResult | GroupResult, timeout_s: float) -> Exception:
    try:
        got = result.get(timeout=timeout_s)
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError(f"nothing was raised, but {got!r} came back")


def nothing_is_left(stage: Stage) -> None:
    assert stage.client.router.size == 0
    wait_until(lambda: stage.channels() == [stage.client.router.channel], "the subscription ended")


def get_waits_and_returns_the_output(stage: Stage) -> None:
    result = AsyncResult(later(stage, "x"), app=app_of(stage))
    waiting = gevent.spawn(result.get, timeout=20.0)
    wait_until(lambda: stage.client.router.size == 1)
    began = time.monotonic()
    stage.serve()
    assert waiting.get(timeout=15) == {"echo": "x"}
    assert time.monotonic() - began < 10
    assert result.successful()
    nothing_is_left(stage)


def get_of_what_has_finished_returns_at_once(stage: Stage) -> None:
    """200 at a time: celery/celery#10671, where they never returned."""
    app = app_of(stage)
    ids = [later(stage, i) for i in range(200)]
    stage.serve()
    began = time.monotonic()
    outputs = all_of(partial(AsyncResult(each, app=app).get, timeout=20.0) for each in ids)
    assert outputs == [{"echo": i} for i in range(200)]
    assert time.monotonic() - began < 10
    nothing_is_left(stage)


def get_raises_what_the_task_raised(stage: Stage) -> None:
    app = app_of(stage)
    ids = [later(stage, {"do": do, "text": "why é"}) for do in ("reject", "fail")]
    back = later(stage, "x")
    stage.client.cancel(back)
    stage.serve()
    errors = [raised(AsyncResult(each, app=app), 20.0) for each in (*ids, back)]
    assert [type(each) for each in errors] == [InputRejected, InferenceFailed, TaskRevokedError]
    assert str(errors[0]) == "why é"
    kept = AsyncResult(ids[0], app=app).get(timeout=5.0, propagate=False)
    assert isinstance(kept, InputRejected)


def a_timeout_is_celerys_own_and_leaves_nothing(stage: Stage) -> None:
    app = app_of(stage)
    task_id = later(stage, "x")
    began = time.monotonic()
    for timeout_s in (0.01, 0.3):
        assert type(raised(AsyncResult(task_id, app=app), timeout_s)) is CeleryTimeoutError
    assert time.monotonic() - began < 10
    nothing_is_left(stage)
    assert app.backend.result_consumer._pending_results.concrete == {}


def an_answer_without_a_message_is_found_at_the_end(stage: Stage) -> None:
    task_id = later(stage, {"do": "whisper"})
    waiting = gevent.spawn(AsyncResult(task_id, app=app_of(stage)).get, timeout=1.0)
    wait_until(lambda: stage.client.router.size == 1)
    gevent.sleep(0.2)
    stage.serve()
    assert waiting.get(timeout=15) == {"echo": {"do": "whisper"}}


def a_group_comes_in_its_order(stage: Stage) -> None:
    app = app_of(stage)
    ids = [later(stage, i) for i in range(20)]
    group = GroupResult("a-group", [AsyncResult(each, app=app) for each in ids], app=app)
    waiting = gevent.spawn(group.get, timeout=20.0)
    wait_until(lambda: stage.client.router.size == 1)
    stage.serve()
    assert waiting.get(timeout=15) == [{"echo": i} for i in range(20)]
    nothing_is_left(stage)


def a_group_in_a_group_comes_whole(stage: Stage) -> None:
    app = app_of(stage)
    ids = [later(stage, i) for i in range(3)]
    inner = GroupResult("inner", [AsyncResult(each, app=app) for each in ids[:2]], app=app)
    outer = GroupResult("outer", [inner, AsyncResult(ids[2], app=app)], app=app)
    stage.serve()
    assert outer.get(timeout=20.0) == [[{"echo": 0}, {"echo": 1}], {"echo": 2}]
    nothing_is_left(stage)


def a_groups_timeout_is_for_all_of_it(stage: Stage) -> None:
    app = app_of(stage)
    ids = [later(stage, i) for i in range(40)]
    group = GroupResult("a-group", [AsyncResult(each, app=app) for each in ids], app=app)

    def trickle() -> None:
        for number in range(40):
            gevent.sleep(0.2)
            claim = stage.store.claim(NOBODY, f"t{number}", 1)
            finish(stage.store, claim)

    helper = gevent.spawn(trickle)
    began = time.monotonic()
    assert type(raised(group, 1.0)) is CeleryTimeoutError
    # Not a second more for each of its forty.
    assert time.monotonic() - began < 5
    helper.kill()
    nothing_is_left(stage)


def what_celery_sends_from_here_is_answered_too(stage: Stage) -> None:
    app = app_of(stage)
    results = [app.send_task("bunch.infer", [i], {"parameters": {}}, queue=PAID) for i in range(5)]
    # Celery would have subscribed to each by now.
    assert stage.channels() == [stage.client.router.channel]
    assert [each.get(timeout=20.0) for each in results] == [{"echo": i} for i in range(5)]
    signature = app.signature("bunch.infer", args=("g",), options={"queue": PAID})
    assert signature.apply_async().get(timeout=20.0) == {"echo": "g"}
    nothing_is_left(stage)


def a_result_of_another_frontends_is_waited_for(stage: Stage) -> None:
    other = stage.make_client()
    pending = other.submit(NOBODY, Tier.PAID, b'"x"', timeout_s=20.0, waits=False)
    waiting = gevent.spawn(AsyncResult(other.receipt(pending), app=app_of(stage)).get, timeout=20.0)
    wait_until(lambda: stage.client.router.size == 1)
    stage.serve()
    assert waiting.get(timeout=15) == {"echo": "x"}


def without_a_client_it_is_celerys_own_backend(stage: Stage) -> None:
    app = make_app(stage.settings, result_backend=backend_url(stage.url, "tasks.backend:BunchBackend"))
    result = AsyncResult(later(stage, "x"), app=app)
    waiting = gevent.spawn(result.get, timeout=20.0)
    wait_until(lambda: len(stage.channels()) == 2)
    stage.serve()
    assert waiting.get(timeout=15) == {"echo": "x"}
    # Before the interpreter goes: Celery's finalizer of a result wants a living greenlet.
    del waiting, result
    gc.collect()

"""Celery's own result API under gevent with `bunch.celery_backend`: it is in time, and leaves nothing behind."""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import Any

import gevent
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, GroupResult
from redis import Redis

from bunch.celery_backend import BunchBackend
from config.keys import TASK_NAME, Shard
from config.tiers import Tier
from tasks.errors import InferenceFailed, InputRejected
from tasks.protocol.results import CeleryCodec
from tests.fakes.worker import finish
from tests.gevent_scenarios.frontend_fixture import LONG_S, NOBODY, SOON_S, FrontendFixture, all_of, asking
from tests.gevent_scenarios.outages import own_server
from tests.shards import ON_CLUSTER
from tests.waiting import wait_until

PAID = "bunch.m.paid"
CHANNEL = "celery-task-meta-"
_CODEC = CeleryCodec(60_000)


def app_of(url: str) -> Celery:
    """The app of another program, except for the setting."""
    return Celery("a-stranger", broker=url, backend=f"bunch.celery_backend:BunchBackend+{url}", set_as_current=False)


def later(frontend: FrontendFixture, value: object, model: str = NOBODY) -> str:
    """Queue a task; returns its id. Beside a cluster Celery's backends find the results of plain clients alone."""
    if ON_CLUSTER:
        queue = Shard().queue(model, Tier.PAID)
        return str(app_of(frontend.url).send_task(TASK_NAME, [value], {"parameters": {}}, queue=queue).id)
    return frontend.client.receipt(frontend.submit(value, model, waits=False))


def raised(result: AsyncResult | GroupResult, timeout_s: float) -> Exception:
    try:
        got = result.get(timeout=timeout_s)
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError(f"nothing was raised, but {got!r} came back")


def waited_for(redis: Redis) -> list[str]:
    """The ids with a subscriber on their channel."""
    channels = [*redis.pubsub_channels(f"{CHANNEL}*"), *redis.pubsub_shardchannels(f"{CHANNEL}*")]
    names = [each.decode().removeprefix(CHANNEL) for each in channels if isinstance(each, bytes)]
    # Without the tag of a shard.
    return [each.partition("{")[0] for each in names]


def nothing_is_left(frontend: FrontendFixture, app: Celery) -> None:
    wait_until(lambda: not waited_for(frontend.redis), "the subscriptions ended")
    consumer = app.backend.result_consumer
    assert [*app.backend._pending_results, consumer._waits, consumer.subscribed_to] == [{}, {}, {}, set()]


def get_waits_and_returns_the_output(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    result = AsyncResult(later(frontend, "x"), app=app)
    waiting = gevent.spawn(result.get, timeout=LONG_S)
    wait_until(lambda: waited_for(frontend.redis) == [result.id])
    frontend.serve()
    assert waiting.get(timeout=SOON_S) == {"echo": "x"}
    assert result.successful()
    nothing_is_left(frontend, app)


def get_of_what_has_finished_returns_at_once(frontend: FrontendFixture) -> None:
    """200 at a time: celery/celery#10671, where they never returned."""
    app = app_of(frontend.url)
    ids = [later(frontend, i) for i in range(200)]
    frontend.serve()
    outputs = all_of(partial(AsyncResult(each, app=app).get, timeout=LONG_S) for each in ids)
    assert outputs == [{"echo": i} for i in range(200)]
    nothing_is_left(frontend, app)


def all_greenlets_have_one_backend_and_one_subscription(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    ids = [later(frontend, i) for i in range(50)]
    before = len(frontend.redis.client_list(_type="pubsub"))

    def get(task_id: str) -> Any:
        return AsyncResult(task_id, app=app).get(timeout=LONG_S)

    waiting = [gevent.spawn(get, each) for each in ids]
    wait_until(lambda: len(waited_for(frontend.redis)) == 50)
    assert len(frontend.redis.client_list(_type="pubsub")) == before + 1
    frontend.serve()
    assert [each.get(timeout=SOON_S) for each in waiting] == [{"echo": i} for i in range(50)]
    nothing_is_left(frontend, app)


def a_message_wakes_only_those_that_wait_for_its_result(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    woken: list[str] = []
    ids = [later(frontend, i) for i in range(20)]

    def wait(task_id: str) -> None:
        results = app.backend.result_consumer
        wakes = results._wait_for_pending(AsyncResult(task_id, app=app), timeout=LONG_S)
        woken.extend(task_id for _ in wakes)

    waiting = [gevent.spawn(wait, each) for each in ids]
    wait_until(lambda: len(waited_for(frontend.redis)) == 20)
    woken.clear()
    began = time.monotonic()
    done = []
    for number in range(10):
        claim = frontend.store.claim(NOBODY, f"t{number}", 1)
        done += [_CODEC.decode(each).id for each in claim.entries]
        finish(frontend.store, claim)
    gevent.joinall([waiting[ids.index(each)] for each in done], timeout=SOON_S, raise_error=True)
    assert set(done) <= set(woken)
    # Each also wakes once a second, to call `on_interval`.
    assert sum(each not in done for each in woken) <= 10 * (1 + int(time.monotonic() - began))
    frontend.serve()
    gevent.joinall(waiting, timeout=SOON_S, raise_error=True)


def get_raises_what_the_task_raised(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    ids = [later(frontend, {"do": do, "text": "why é"}) for do in ("reject", "fail")]
    back = later(frontend, "x")
    frontend.client.cancel(back)
    frontend.serve()
    errors = [raised(AsyncResult(each, app=app), LONG_S) for each in (*ids, back)]
    assert [type(each) for each in errors] == [InputRejected, InferenceFailed, TaskRevokedError]
    assert str(errors[0]) == "why é"
    kept = AsyncResult(ids[0], app=app).get(timeout=LONG_S, propagate=False)
    assert isinstance(kept, InputRejected)


def a_timeout_is_celerys_own_and_leaves_nothing(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    task_id = later(frontend, "x")
    for timeout_s in (0, 0.01, 0.3):
        assert type(raised(AsyncResult(task_id, app=app), timeout_s)) is CeleryTimeoutError
    nothing_is_left(frontend, app)
    # The same result may be waited for again.
    result = AsyncResult(task_id, app=app)
    assert type(raised(result, 0.1)) is CeleryTimeoutError
    frontend.serve()
    assert result.get(timeout=LONG_S) == {"echo": "x"}


def an_answer_without_a_message_is_found(frontend: FrontendFixture) -> None:
    """Before a timeout, and without one."""
    app = app_of(frontend.url)
    for options in ({"timeout": LONG_S}, {}):
        task_id = later(frontend, {"do": "whisper"})
        waiting = gevent.spawn(AsyncResult(task_id, app=app).get, **options)
        wait_until(lambda: task_id in waited_for(frontend.redis))  # noqa: B023 - called before the next round
        frontend.serve()
        assert waiting.get(timeout=LONG_S) == {"echo": {"do": "whisper"}}


def on_message_hears_of_its_own_result_alone(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    ids = [later(frontend, i) for i in range(10)]
    heard: dict[str, list[Any]] = {each: [] for each in ids}
    waiting = [
        gevent.spawn(AsyncResult(each, app=app).get, timeout=LONG_S, on_message=heard[each].append) for each in ids
    ]
    wait_until(lambda: len(waited_for(frontend.redis)) == 10)
    frontend.serve()
    assert [each.get(timeout=SOON_S) for each in waiting] == [{"echo": i} for i in range(10)]
    for task_id, metas in heard.items():
        assert {each["task_id"] for each in metas} == {task_id}
        assert metas[-1]["status"] == "SUCCESS"


def a_group_comes_in_its_order(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    ids = [later(frontend, i) for i in range(20)]
    group = GroupResult("a-group", [AsyncResult(each, app=app) for each in ids], app=app)
    waiting = gevent.spawn(group.get, timeout=LONG_S)
    wait_until(lambda: len(waited_for(frontend.redis)) == 20)
    frontend.serve()
    assert waiting.get(timeout=SOON_S) == [{"echo": i} for i in range(20)]
    nothing_is_left(frontend, app)


def a_group_in_a_group_comes_whole(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    ids = [later(frontend, i) for i in range(3)]
    inner = GroupResult("inner", [AsyncResult(each, app=app) for each in ids[:2]], app=app)
    outer = GroupResult("outer", [inner, AsyncResult(ids[2], app=app)], app=app)
    frontend.serve()
    assert outer.get(timeout=LONG_S) == [[{"echo": 0}, {"echo": 1}], {"echo": 2}]
    nothing_is_left(frontend, app)


def a_groups_timeout_is_for_all_of_it(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    ids = [later(frontend, i) for i in range(40)]
    group = GroupResult("a-group", [AsyncResult(each, app=app) for each in ids], app=app)

    def trickle() -> None:
        for number in range(40):
            gevent.sleep(0.2)
            claim = frontend.store.claim(NOBODY, f"t{number}", 1)
            finish(frontend.store, claim)

    helper = gevent.spawn(trickle)
    # Not one second more for each of its forty members, which come in less than that.
    assert type(raised(group, 1.0)) is CeleryTimeoutError
    helper.kill()
    assert frontend.depth() > 20
    nothing_is_left(frontend, app)


def what_celery_sends_from_here_is_answered_too(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    results = [app.send_task("bunch.infer", [i], {"parameters": {}}, queue=PAID) for i in range(5)]
    # Celery would have subscribed to each by now.
    assert waited_for(frontend.redis) == []
    assert [each.get(timeout=LONG_S) for each in results] == [{"echo": i} for i in range(5)]
    signature = app.signature("bunch.infer", args=("g",), options={"queue": PAID})
    assert signature.apply_async().get(timeout=LONG_S) == {"echo": "g"}
    nothing_is_left(frontend, app)


def a_result_of_a_frontends_is_waited_for(frontend: FrontendFixture) -> None:
    other = frontend.make_client()
    app = app_of(frontend.url)
    pending = other.submit(asking(NOBODY, b'"x"', waits=False))
    waiting = gevent.spawn(AsyncResult(other.receipt(pending), app=app).get, timeout=LONG_S)
    wait_until(lambda: waited_for(frontend.redis) != [])
    frontend.serve()
    assert waiting.get(timeout=SOON_S) == {"echo": "x"}


def waited_for_in_time(frontend: FrontendFixture, app: Celery) -> gevent.Greenlet[..., Exception]:
    """A wait that ends after some seconds, and has not yet: its subscription, and all others, are there."""
    for timeout_s in (3.0, 12.0, 48.0):
        short: gevent.Greenlet[..., Exception] = gevent.spawn(raised, AsyncResult("never", app=app), timeout_s)
        wait_until(lambda: len(waited_for(frontend.redis)) == 2 or short.ready())  # noqa: B023 - called at once
        if not short.ready():
            return short
    raise AssertionError("it always ended before it was subscribed to")


def an_outage_ends_no_wait_and_no_timeout_waits_for_its_end(_: FrontendFixture) -> None:
    """In Celery nobody waits again after twenty failed attempts, until the process is restarted."""
    with own_server() as (valkey, frontend):
        app = app_of(frontend.url)
        before = gevent.spawn(AsyncResult("before", app=app).get)
        short = waited_for_in_time(frontend, app)
        valkey.kill()
        meanwhile = gevent.spawn(AsyncResult("meanwhile", app=app).get, timeout=LONG_S)
        assert type(short.get(timeout=LONG_S)) is CeleryTimeoutError
        assert not before.ready()
        assert not meanwhile.ready()
        valkey.start()
        store = Celery("another", backend=frontend.url, set_as_current=False).backend
        for task_id in ("before", "meanwhile"):
            store.store_result(task_id, task_id.upper(), "SUCCESS")
        assert (before.get(timeout=LONG_S), meanwhile.get(timeout=LONG_S)) == ("BEFORE", "MEANWHILE")
        # The reader greenlet is still alive.
        store.store_result("after", 1, "SUCCESS")
        assert AsyncResult("after", app=app).get(timeout=LONG_S) == 1
        nothing_is_left(frontend, app)


def a_connection_that_redis_closes_is_opened_again(frontend: FrontendFixture) -> None:
    app = app_of(frontend.url)
    result = AsyncResult(later(frontend, "x"), app=app)
    waiting = gevent.spawn(result.get, timeout=LONG_S)
    wait_until(lambda: waited_for(frontend.redis) == [result.id])
    frontend.redis.client_kill_filter(_type="pubsub")
    frontend.serve()
    assert waiting.get(timeout=SOON_S) == {"echo": "x"}


def without_the_setting_it_is_celerys_own(frontend: FrontendFixture) -> None:
    app = Celery("plain", backend=frontend.url, set_as_current=False)
    assert not isinstance(app.backend, BunchBackend)
    task_id = later(frontend, "x")
    waiting = gevent.spawn(AsyncResult(task_id, app=app).get, timeout=LONG_S)
    wait_until(lambda: waited_for(frontend.redis) == [task_id])
    frontend.serve()
    assert waiting.get(timeout=SOON_S) == {"echo": "x"}
    # Before the interpreter exits: Celery's finalizer of a result needs a living greenlet.
    del waiting
    gc.collect()

"""The models that are served, as `/readyz` and callers see them: the whole frontend, with workers that only
register.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gevent
import msgspec
from flask.testing import FlaskClient
from redis import Redis

from batching.claim.registry import ModelThroughput, WorkerRegistry
from config.settings import Settings
from config.tiers import Tier
from tasks.fleet.desired_state import DesiredState
from tasks.fleet.registry_reader import ExecutorRow, OnDemandRow, WorkerRow
from tests.fakes.worker import StandInWorker
from tests.gevent_scenarios.frontend_fixture import NOBODY, SERVED, SMALL, FrontendFixture, all_of
from tests.gevent_scenarios.outages import hanging
from tests.shards import note_load, places_of
from tests.valkey import PrivateValkey
from tests.waiting import PATIENCE_S, wait_until
from webapp import readiness
from webapp.app import create_app, make_services
from webapp.readiness import FRESH_S

_LONG_LEASE_MS = 60_000
# A command to a Redis that hangs gives up after five seconds.
_LONG_BEFORE_REDIS_GIVES_UP_S = 3.5


@contextmanager
def frontend_app(settings: Settings, *, in_time: bool = False) -> Iterator[FlaskClient]:
    """The app of a frontend, which tells what it reads however long that takes, unless `in_time`.

    The stand-in of a worker beats once, and on a slow machine a second may last ten.
    """
    settings = msgspec.structs.replace(settings, lease_ttl_ms=_LONG_LEASE_MS)
    if not in_time:
        # A busy machine may need longer than probes wait. The process ends with its scenario.
        for name in ("_REASON_S", "_REQUIRE_S", "_SHARDS_S"):
            setattr(readiness, name, PATIENCE_S)
        readiness.Readiness.look.__defaults__ = (PATIENCE_S, FRESH_S)
    app = create_app(make_services(settings))
    app.start()
    try:
        yield app.test_client()
    finally:
        app.stop()


def says(redis: Redis, **states: str) -> None:
    """Register a worker's heartbeat in all places: model → state of its one executor."""
    rows = tuple(ExecutorRow(model, f"{model}/0", state) for model, state in states.items())
    row = WorkerRow("w1", "host", 1, 0.0, rows)
    paces = {model: ModelThroughput(int(state == "ready")) for model, state in states.items()}
    for place in places_of(redis):
        about = msgspec.json.encode(row) if place.number is None else b""
        WorkerRegistry(place.redis, 60.0, place.keys).beat(row.id, about, paces)


def looks(redis: Redis) -> int:
    """The number of reads of the register of workers."""
    return int(redis.info("commandstats").get("cmdstat_zrange", {"calls": 0})["calls"])


def is_ready(client: FlaskClient, query: str = "") -> tuple[int, Any]:
    answer = client.get(f"/readyz{query}")
    return answer.status_code, answer.json


def post(client: FlaskClient, path: str, body: dict[str, object], **headers: str) -> tuple[int, Any]:
    answer = client.post(path, json=body, headers=headers)
    return answer.status_code, answer.json


def one_model_that_is_not_served_does_not_take_the_others_along(frontend: FrontendFixture) -> None:
    says(frontend.redis, **{SERVED: "ready", SMALL: "failed"})
    with frontend_app(frontend.settings) as client:
        status, body = is_ready(client)
        assert (status, body["status"], body["models"]) == (200, "ready", [SERVED])
        assert set(body["unavailable_models"]) == set(frontend.settings.models) - {SERVED}
        assert is_ready(client, f"?model={SERVED}")[0] == 200
        status, body = is_ready(client, f"?model={SMALL}")
        assert (status, body["error"]) == (503, "MODEL_UNAVAILABLE")
        assert SMALL in body["message"]
        assert is_ready(client, "?model=else")[1]["error"] == "UNKNOWN_MODEL"

        says(frontend.redis, **{SERVED: "starting", SMALL: "ready"})
        wait_until(lambda: is_ready(client, f"?model={SMALL}")[0] == 200)
        assert is_ready(client, f"?model={SERVED}")[0] == 503
        assert is_ready(client)[0] == 200

        says(frontend.redis, **{SERVED: "starting", SMALL: "failed"})
        wait_until(lambda: is_ready(client)[0] == 503)
        body = is_ready(client)[1]
        assert body["error"] == "MODEL_UNAVAILABLE"
        assert all(name in body["message"] for name in frontend.settings.models)


def probes_cost_redis_one_look_a_second(frontend: FrontendFixture) -> None:
    says(frontend.redis, **{SERVED: "ready"})
    with frontend_app(frontend.settings) as client:
        assert is_ready(client)[0] == 200

        def cost_little() -> bool:
            before, began = looks(frontend.redis), time.monotonic()
            statuses = all_of([lambda: is_ready(client)[0]] * 200)
            assert set(statuses) == {200}
            return looks(frontend.redis) - before <= (time.monotonic() - began) / FRESH_S + 1

        # Others of this process look every few seconds.
        wait_until(cost_little)


def told_that_it_is_away(client: FlaskClient, query: str) -> float:
    """Seconds until it is told."""
    began = time.monotonic()
    status, body = is_ready(client, query)
    took_s = time.monotonic() - began
    assert (status, body["error"]) == (503, "BACKEND_UNAVAILABLE")
    assert "127.0.0.1" not in body["message"]
    return took_s


def a_redis_that_hangs_is_told_before_a_probe_gives_up(_: FrontendFixture) -> None:
    valkey = PrivateValkey()
    valkey.start()
    frontend = FrontendFixture(valkey.url)
    try:
        says(frontend.redis, **{SERVED: "ready"})
        with frontend_app(frontend.settings, in_time=True) as client:
            wait_until(lambda: is_ready(client)[0] == 200)
            with hanging(valkey):
                gevent.sleep(FRESH_S)
                for query in ("", f"?model={SERVED}"):
                    # The quickest counts: Redis would give up after the same time whenever it is asked.
                    took_s = [told_that_it_is_away(client, query)]
                    while min(took_s) > _LONG_BEFORE_REDIS_GIVES_UP_S:
                        assert len(took_s) < 5
                        took_s.append(told_that_it_is_away(client, query))
            wait_until(lambda: is_ready(client)[0] == 200)
    finally:
        frontend.close()
        valkey.stop()


def a_model_that_was_never_loaded_is_refused_at_once(frontend: FrontendFixture) -> None:
    with frontend_app(frontend.settings) as client:
        asked: list[tuple[str, dict[str, object], dict[str, str]]] = [
            ("/v1/inference", {"input": 1, "model": NOBODY}, {}),
            ("/v1/inference", {"input": 1, "model": NOBODY}, {"Prefer": "respond-async"}),
            ("/v1/inference", {"input": 1, "model": NOBODY}, {"Idempotency-Key": "k"}),
            ("/v1/predict", {"input_data": 1, "model_id": NOBODY}, {}),
            ("/v1/inference/bulk", {"inputs": [1, 2], "model": NOBODY}, {}),
            ("/api/inference", {"input": "for the default one"}, {}),
        ]
        for path, body, headers in asked:
            status, answer = post(client, path, body, **headers)
            assert (status, answer["error"]) == (503, "MODEL_UNAVAILABLE"), path
            assert answer["retry_after_ms"] >= 1000
        assert frontend.depth() == frontend.depth(SERVED) == 0

        # The very first request after the load, whatever was cached a moment before.
        note_load(frontend.redis, NOBODY)
        assert post(client, "/v1/inference", {"input": 1, "model": NOBODY}, Prefer="respond-async")[0] == 202
        says(frontend.redis, **{SERVED: "ready"})
        assert post(client, "/v1/inference", {"input": 1}, Prefer="respond-async")[0] == 202


def what_was_loaded_once_waits_and_a_late_answer_says_why(frontend: FrontendFixture) -> None:
    note_load(frontend.redis, NOBODY)
    late: dict[str, object] = {"input": 1, "model": NOBODY, "timeout_ms": 200}
    with frontend_app(frontend.settings) as client:
        status, answer = post(client, "/v1/inference", late)
        assert (status, answer["error"]) == (504, "DEADLINE_EXCEEDED")
        assert f"no executor is ready for {NOBODY}" in answer["message"]

        says(frontend.redis, **{NOBODY: "ready"})
        DesiredState(frontend.redis).pause(NOBODY, [Tier.FREE])
        gevent.sleep(FRESH_S)
        assert "paused" not in post(client, "/v1/inference", late)[1]["message"]
        message = post(client, "/v1/inference", late, **{"X-Tier": "free"})[1]["message"]
        assert f"{NOBODY} is paused for free" in message
        bulk = {**late, "inputs": [1, 2]}
        del bulk["input"]
        results = post(client, "/v1/inference/bulk", bulk, **{"X-Tier": "free"})[1]["results"]
        assert ["paused for free" in each["message"] for each in results] == [True, True]

        DesiredState(frontend.redis).resume(NOBODY)
        gevent.sleep(FRESH_S)
        assert "paused" not in post(client, "/v1/inference", late, **{"X-Tier": "free"})[1]["message"]


def on_demand(frontend: FrontendFixture, **settings: Any) -> Settings:
    """The settings, with a model that is loaded on demand."""
    model = msgspec.structs.replace(frontend.settings.models[SERVED], residency="on_demand")
    models = {**frontend.settings.models, SERVED: model}
    return msgspec.structs.replace(
        frontend.settings, models=models, max_resident=1, request_timeout_ms=60_000, **settings
    )


def resides(redis: Redis, state: str, **about: Any) -> None:
    """Register a worker with the on-demand model."""
    row = ExecutorRow(SERVED, f"{SERVED}/0", state, on_demand=OnDemandRow(**about))
    worker = WorkerRow("w1", "host", 1, 0.0, (row,))
    WorkerRegistry(redis, lease_ttl_s=60.0).beat(worker.id, msgspec.json.encode(worker))
    gevent.sleep(FRESH_S)


def retry_after(client: FlaskClient, path: str, body: dict[str, object]) -> tuple[int, str, str]:
    answer = client.post(path, json=body)
    return answer.status_code, msgspec.json.decode(answer.data)["error"], answer.headers["Retry-After"]


def a_deadline_that_cannot_hold_the_load_is_refused_and_the_model_is_wanted(frontend: FrontendFixture) -> None:
    redis = frontend.redis
    short: dict[str, object] = {"input": 1, "timeout_ms": 10_000}
    long: dict[str, object] = {"input": 1, "timeout_ms": 50_000}
    with frontend_app(on_demand(frontend)) as client:
        resides(redis, "unloaded", residency="unloaded", ready_in_ms=24_200)
        assert is_ready(client, f"?model={SERVED}")[0] == 200
        asked: list[tuple[str, dict[str, object]]] = [
            ("/v1/inference", short),
            ("/v1/inference/bulk", {"inputs": [1, 2], "timeout_ms": 10_000}),
        ]
        for path, body in asked:
            # And a second until a worker has seen that it is wanted.
            assert retry_after(client, path, body) == (503, "MODEL_UNAVAILABLE", "26"), path
        assert WorkerRegistry(redis, 60.0).wanted([NOBODY, SERVED]) == [SERVED]
        assert WorkerRegistry(redis, 60.0).wanted([SERVED]) == [], "one worker is enough"

        for state, about in (
            ("unloaded", {"residency": "unloaded", "ready_in_ms": 24_200}),
            ("starting", {"residency": "loading"}),
            ("ready", {"residency": "resident", "ready_in_ms": 0}),
        ):
            resides(redis, state, **about)
            body = short if state != "unloaded" else long
            accepted = client.post("/v1/inference", json=body, headers={"Prefer": "respond-async"})
            assert accepted.status_code == 202, state
        assert WorkerRegistry(redis, 60.0).wanted([SERVED]) == []


def a_model_whose_load_fails_is_refused_until_the_next_try(frontend: FrontendFixture) -> None:
    with frontend_app(on_demand(frontend)) as client:
        resides(frontend.redis, "failed", residency="unloaded", retry_in_ms=7_500)
        assert is_ready(client, f"?model={SERVED}")[0] == 503
        assert retry_after(client, "/v1/inference", {"input": 1}) == (503, "MODEL_UNAVAILABLE", "8")


def waits_or_has_ended(frontend: FrontendFixture, asked: gevent.Greenlet[..., Any]) -> bool:
    return bool(frontend.depth(SERVED)) or asked.ready()


def what_waits_for_its_model_to_be_loaded_has_its_deadline_only(frontend: FrontendFixture) -> None:
    settings = on_demand(frontend, queue_timeout_ms=1)
    always = msgspec.structs.replace(settings, models=frontend.settings.models)
    for configured, status in ((settings, 200), (always, 504)):
        resides(frontend.redis, "unloaded", residency="unloaded")
        with frontend_app(configured) as client:
            asked = gevent.spawn(post, client, "/v1/inference", {"input": 1, "timeout_ms": 30_000})
            # The worker of the round before may still have met it, on its way out.
            wait_until(partial(waits_or_has_ended, frontend, asked), what="it waits")
            gevent.sleep(0.05)
            worker = StandInWorker(frontend.url)
            worker.start()
            try:
                assert asked.get()[0] == status
            finally:
                worker.stop()


def who_knows_a_model_asks_redis_nothing_more(frontend: FrontendFixture) -> None:
    note_load(frontend.redis, SERVED)
    worker = StandInWorker(frontend.url)
    worker.start()
    try:
        with frontend_app(frontend.settings) as client:
            assert post(client, "/v1/inference", {"input": 1})[0] == 200
            assert looks(frontend.redis)

            def asks_nothing() -> bool:
                before = looks(frontend.redis)
                assert [post(client, "/v1/inference", {"input": n})[0] for n in range(20)] == [200] * 20
                return looks(frontend.redis) == before

            # Others of this process look every few seconds, in the middle of twenty requests if those are slow.
            wait_until(asks_nothing)
    finally:
        worker.stop()

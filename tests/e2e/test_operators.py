"""The tools of operators: metrics, Flower, Celery's remote control."""

from __future__ import annotations

import http.client
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from celery import Celery
from prometheus_client.parser import text_string_to_metric_families

from cli.supervisor.ports import free_port
from tests.e2e.client import Api
from tests.e2e.gate import Gate
from tests.e2e.stack import PATIENCE_S, Stack
from tests.waiting import wait_until

CONTRACT_METRICS = {
    *("bunch_requests", "bunch_request_seconds", "bunch_queue_seconds", "bunch_queue_depth"),
    *("bunch_queue_oldest_seconds", "bunch_batch_size", "bunch_batch_fill_seconds", "bunch_batches"),
    *("bunch_compute_seconds", "bunch_executor_busy_seconds", "bunch_retries", "bunch_redelivered"),
    *("bunch_cancelled_before_compute", "bunch_expired", "bunch_shed", "bunch_workers", "bunch_dead_lettered"),
    *("bunch_collapsed", "bunch_cache_hits", "bunch_slo_attainment", "bunch_slo_burn_rate", "bunch_executors"),
}


class Scrape:
    """One look at `/metrics`."""

    def __init__(self, api: Api) -> None:
        answer = api.get("/metrics")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain")
        self.families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}

    def values(self, sample: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Samples by the values of those labels, in the order of their names, that `labels` does not fix."""
        found: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for family in self.families.values():
            for each in family.samples:
                if each.name == sample and labels.items() <= each.labels.items():
                    found[tuple(each.labels[name] for name in sorted(each.labels.keys() - labels.keys()))] += each.value
        return dict(found)

    def total(self, sample: str, **labels: str) -> float:
        return sum(self.values(sample, **labels).values())


def test_requests_are_counted_exactly_over_all_processes(api: Api) -> None:
    # What others have sent must be in the sums first.
    settled(api)
    before = Scrape(api)
    # Each call is a connection of its own, so both frontends have a share of each kind.
    api.all(range(300), "moody")
    api.all([{"reject": "no"}] * 40, "moody")
    api.all([{"fail": "no"}] * 30, "moody")
    api.post("/v1/inference/bulk", {"inputs": [1, {"reject": "no"}] * 25, "model": "moody"})
    api.post("/v1/predict", {"model_id": "moody", "input_data": 1})
    for n in range(10):
        api.outcome(api.later(n, "moody"))
    # The callers' own mistake, which nobody could have answered in time: on neither side of an objective.
    assert {each.status for each in api.all([0] * 20, "moody", timeout_ms=0)} == {400}
    for _ in range(5):
        api.post("/v1/inference", {"input": 1, "model": "moody"}, X_Tier="free")
    expected = {
        ("OK", "paid"): 300 + 25 + 1 + 10,
        ("INPUT_REJECTED", "paid"): 40 + 25,
        ("INFERENCE_FAILED", "paid"): 30,
        ("OK", "free"): 5,
    }
    computed = sum(expected.values())

    def all_told() -> bool:
        now = Scrape(api)
        return all(
            now.total(name, model="moody") - before.total(name, model="moody") >= computed
            for name in ("bunch_requests_total", "bunch_batch_size_sum")
        )

    wait_until(all_told, what="all processes have told their sums")
    # Nobody tells more.
    settled(api)
    after = Scrape(api)

    def grown(sample: str, **labels: str) -> float:
        return after.total(sample, model="moody", **labels) - before.total(sample, model="moody", **labels)

    now, then = (each.values("bunch_requests_total", model="moody", door="bunch") for each in (after, before))
    counts = {labels: value - then.get(labels, 0) for labels, value in now.items()}
    assert {labels: count for labels, count in counts.items() if count} == expected
    for tier in ("paid", "free"):
        assert grown("bunch_request_seconds_count", tier=tier) == sum(n for key, n in expected.items() if tier in key)
    assert grown("bunch_batch_size_sum") == grown("bunch_queue_seconds_count") == computed
    assert grown("bunch_batches_total") == grown("bunch_batch_size_count") == grown("bunch_compute_seconds_count")


def test_the_exposition_is_whole(api: Api, gate: Gate) -> None:
    api.infer("some request")
    gate.occupy()
    waiting = [api.soon(n, "moody") for n in range(3)]
    wait_until(lambda: Scrape(api).total("bunch_queue_depth", model="moody") == 3, what="the depth is shown")
    # On a machine that stands still a heartbeat may be late.
    wait_until(lambda: Scrape(api).values("bunch_workers")[("healthy",)] == 2, what="both workers are healthy")
    scrape = Scrape(api)
    gate.open()
    assert {each.result().status for each in waiting} == {200}

    assert set(scrape.families) >= CONTRACT_METRICS
    assert all(family.documentation for family in scrape.families.values())
    assert scrape.values("bunch_queue_depth", model="moody") == {("enterprise",): 0, ("paid",): 3, ("free",): 0}
    assert scrape.total("bunch_queue_oldest_seconds", model="moody") > 0
    for family in scrape.families.values():
        if family.type == "histogram":
            check_histogram(scrape, family)


def check_histogram(scrape: Scrape, family: Any) -> None:
    series: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    for each in family.samples:
        if each.name.endswith("_bucket"):
            labels = tuple(sorted((name, value) for name, value in each.labels.items() if name != "le"))
            series.setdefault(labels, {})[float(each.labels["le"])] = each.value
    for labels, buckets in series.items():
        values = [buckets[edge] for edge in sorted(buckets)]
        assert values == sorted(values)
        assert buckets[float("inf")] == scrape.total(family.name + "_count", **dict(labels))


def settled(api: Api) -> None:
    """Until two flushes of every process have gone by with nothing new: they come once a second."""
    since, seen = time.monotonic(), Scrape(api).values("bunch_requests_total")
    while time.monotonic() - since < 2.2:
        time.sleep(0.2)
        now = Scrape(api).values("bunch_requests_total")
        if now != seen:
            since, seen = time.monotonic(), now


@pytest.fixture(scope="module")
def celery(stack: Stack) -> Iterator[Celery]:
    app = Celery("operator", broker=stack.redis_url, set_as_current=False)
    yield app
    app.close()


def test_remote_control_is_answered_during_a_long_batch(celery: Celery, gate: Gate) -> None:
    gate.occupy()
    workers = {"worker1", "worker2"}
    inspect = celery.control.inspect(timeout=PATIENCE_S / 10, limit=3)
    began = time.monotonic()
    pongs = inspect.ping()
    took_s = time.monotonic() - began
    queues = inspect.active_queues()
    active = inspect.active()
    stats = inspect.stats()
    gate.open()

    assert {name.partition("@")[0] for name in pongs} == workers | {"ops"}
    # As many seconds as a node has that does not answer.
    assert took_s < PATIENCE_S / 10
    for name in pongs:
        if name.partition("@")[0] in workers:
            assert {each["name"] for each in queues[name]} >= {
                f"bunch.moody.{tier}" for tier in ("enterprise", "paid", "free")
            }
            (request,) = active[name]
            assert request["name"] == "bunch.infer"
            assert request["delivery_info"]["routing_key"] == "bunch.moody.paid"
            assert stats[name]["bunch"]["in_hand"] == 1


def test_the_ops_worker_is_no_error_among_the_answers(celery: Celery, stack: Stack) -> None:
    for command in ("bunch_stats", "explain"):
        replies = celery.control.broadcast(command, reply=True, timeout=PATIENCE_S / 10, limit=3)
        (ops,) = (reply for each in replies for name, reply in each.items() if name.startswith("ops@"))
        assert ops == {"ok": "serves no model"}
    assert "KeyError" not in (stack.state_dir / "log" / "ops.log").read_text()


class Flower:
    """Its API, as anybody on this machine may ask it."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> Any:
        """None while it does not answer."""
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)) as connection:
                connection.request("GET", path)
                response = connection.getresponse()
                return json.loads(response.read()) if response.status == 200 else None
        except OSError:
            return None

    def states(self) -> dict[str, str]:
        return {task_id: task["state"] for task_id, task in (self.get("/api/tasks?limit=500") or {}).items()}

    def depths(self) -> dict[str, int]:
        lengths = self.get("/api/queues/length") or {}
        return {each["name"]: each["messages"] for each in lengths.get("active_queues", [])}


@pytest.fixture
def flower(stack: Stack) -> Iterator[Flower]:
    port = free_port()
    process = stack.spawn("flower", flower_port=port)
    try:
        page = Flower(port)
        wait_until(lambda: page.get("/api/workers"), what="Flower knows the workers")
        yield page
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_flower_shows_workers_queues_and_tasks(flower: Flower, api: Api, gate: Gate) -> None:
    workers = flower.get("/api/workers?refresh=1")
    assert {name.partition("@")[0] for name in workers} == {"worker1", "worker2", "ops"}

    def sent() -> dict[str, str]:
        return {api.later("done", "moody"): "SUCCESS", api.later({"reject": "no"}, "moody"): "FAILURE"}

    # It asks for task events; the workers begin when they hear of it.
    wait_until(lambda: sent().keys() & flower.states().keys(), what="tasks are shown")
    done = sent()
    wait_until(lambda: done.items() <= flower.states().items(), what="both tasks are shown in their states")
    gate.occupy()
    waiting = [api.later(n, "moody") for n in range(5)]
    wait_until(lambda: flower.depths().get("bunch.moody.paid") == 5, what="the depth is shown")
    wait_until(lambda: "STARTED" in flower.states().values(), what="what runs is shown")
    gate.open()
    assert all(api.outcome(task_id)["status"] != "PENDING" for task_id in waiting)
    task = flower.get(f"/api/task/info/{next(iter(done))}")
    assert (task["name"], task["args"]) == ("bunch.infer", '("done",)')

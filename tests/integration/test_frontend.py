"""The frontend's side of the contract, in real gevent processes: see `tests/gevent_scenarios`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis

from tests.fakes.worker import StandInWorker
from tests.gevent_runner import GeventRunner, scenarios
from tests.gevent_scenarios import (
    answers,
    beside,
    cached,
    celery_results,
    confirmed,
    cost,
    elsewhere,
    idempotency,
    joined,
    leftovers,
    limits,
    nearby,
    outages,
    readiness,
    refused,
    resent,
    sharded,
)
from tests.integration.celery_harness import CeleryProcess
from tests.shards import SHARDS, flush
from tests.valkey import PrivateValkey
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GeventRunner]:
    runner = GeventRunner(tmp_path_factory.mktemp("scenes"))
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def worker(valkey: PrivateValkey) -> Iterator[StandInWorker]:
    # It would stumble over what other tests have left in a queue of the same name.
    flush(valkey.client())
    worker = StandInWorker(valkey.url)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def url(valkey: PrivateValkey, redis: Redis, worker: StandInWorker) -> str:
    """A frontend of an empty database, with a worker."""
    return valkey.url


@scenarios(answers)
def test_answers(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, answers, scenario)


@scenarios(joined)
def test_joined(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, joined, scenario)


@scenarios(leftovers)
def test_leftovers(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, leftovers, scenario)


@scenarios(sharded)
def test_sharded(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, sharded, scenario)


@scenarios(nearby)
def test_nearby(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, nearby, scenario)


@scenarios(refused)
def test_refused(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, refused, scenario)


@scenarios(limits)
def test_limits(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, limits, scenario)


@scenarios(idempotency)
def test_idempotency(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, idempotency, scenario)


@scenarios(beside)
def test_beside(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, beside, scenario)


@scenarios(cached)
def test_cached(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, cached, scenario)


@scenarios(outages)
def test_outages(runner: GeventRunner, valkey: PrivateValkey, scenario: str) -> None:
    runner.run(valkey.url, outages, scenario)


@pytest.fixture(scope="module")
def unserved() -> Iterator[PrivateValkey]:
    """A server without the worker of the others, which may be as quick as the shortest limit of a queue."""
    server = PrivateValkey()
    server.start()
    yield server
    server.stop()


@scenarios(readiness)
def test_readiness(runner: GeventRunner, unserved: PrivateValkey, scenario: str) -> None:
    """A frontend of an empty database, without a worker."""
    with unserved.client() as redis:
        flush(redis)
    runner.run(unserved.url, readiness, scenario)


@scenarios(celery_results)
def test_celery_results(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, celery_results, scenario)


@scenarios(cost)
def test_cost(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, cost, scenario)


@pytest.mark.skipif(SHARDS > 1, reason="Celery's own backend knows of no shards")
def test_a_plain_celery_client_elsewhere_gets_the_results(runner: GeventRunner, url: str) -> None:
    fine, refused = runner.run(url, elsewhere, "submit_and_print_the_ids").split()
    app = Celery("plain", backend=url, set_as_current=False)
    # Celery's own never hears of what ends between its first look and its subscription.
    wait_until(lambda: all(app.AsyncResult(each).ready() for each in (fine, refused)), "they have ended")
    assert app.AsyncResult(fine).get(timeout=30) == {"echo": "é"}
    with pytest.raises(Exception, match="not this"):
        app.AsyncResult(refused).get(timeout=30)
    app.backend.result_consumer.stop()


@pytest.fixture
def plain_worker(url: str, tmp_path: Path) -> Iterator[None]:
    alone = ("-l", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat")
    arguments = (
        "-A",
        "tests.fakes.plain_infer",
        "worker",
        "-P",
        "solo",
        "-l",
        "INFO",
        "-Q",
        "bunch.nobody.paid",
        *alone,
    )
    worker = CeleryProcess(tmp_path, "worker", arguments, PLAIN_URL=url).start()
    try:
        # The scenario's times are those of an answer, not of a start.
        wait_until(lambda: " ready." in worker.said(), "Celery's worker is ready")
        yield
    finally:
        worker.stop()


@pytest.mark.skipif(SHARDS > 1, reason="a plain worker has the queues of plain clients alone")
def test_a_plain_celery_worker_answers(runner: GeventRunner, url: str, plain_worker: None) -> None:
    runner.run(url, elsewhere, "a_plain_worker_answers")


@scenarios(resent)
def test_resent(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, resent, scenario)


@scenarios(confirmed)
def test_confirmed(runner: GeventRunner, url: str, scenario: str) -> None:
    runner.run(url, confirmed, scenario)

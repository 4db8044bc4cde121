"""The frontend's side of the contract, in real gevent processes: see `tests/gevent_scenarios`."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from celery import Celery
from redis import Redis

from tests.fakes.worker import StandInWorker
from tests.gevent_scenarios import answers, celery_results, cost, elsewhere, leftovers, outages
from tests.valkey import PrivateValkey

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def worker(valkey: PrivateValkey) -> Iterator[StandInWorker]:
    # It would stumble over what other tests have left in a queue of the same name.
    valkey.client().flushdb()
    worker = StandInWorker(valkey.url)
    worker.start()
    yield worker
    worker.stop()


def scenarios(module: ModuleType) -> pytest.MarkDecorator:
    names = [
        name
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and [each.annotation for each in inspect.signature(function).parameters.values()] == ["Stage"]
    ]
    assert names
    return pytest.mark.parametrize("scenario", names)


def play(valkey: PrivateValkey, module: ModuleType, scenario: str) -> str:
    """In an interpreter of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gevent_scenarios", valkey.url, module.__name__.rpartition(".")[2], scenario],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    # An error in a greenlet that nobody joins ends up there, and nowhere else.
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@scenarios(answers)
def test_answers(valkey: PrivateValkey, redis: Redis, worker: StandInWorker, scenario: str) -> None:
    play(valkey, answers, scenario)


@scenarios(leftovers)
def test_leftovers(valkey: PrivateValkey, redis: Redis, worker: StandInWorker, scenario: str) -> None:
    play(valkey, leftovers, scenario)


@scenarios(outages)
def test_outages(valkey: PrivateValkey, scenario: str) -> None:
    play(valkey, outages, scenario)


@scenarios(celery_results)
def test_celery_results(valkey: PrivateValkey, redis: Redis, worker: StandInWorker, scenario: str) -> None:
    play(valkey, celery_results, scenario)


@scenarios(cost)
def test_cost(valkey: PrivateValkey, redis: Redis, worker: StandInWorker, scenario: str) -> None:
    play(valkey, cost, scenario)


def test_a_plain_celery_client_elsewhere_gets_the_results(
    valkey: PrivateValkey, redis: Redis, worker: StandInWorker
) -> None:
    fine, refused = play(valkey, elsewhere, "submit_and_print_the_ids").split()
    app = Celery("plain", backend=valkey.url, set_as_current=False)
    assert app.AsyncResult(fine).get(timeout=30) == {"echo": "é"}
    with pytest.raises(Exception, match="not this"):
        app.AsyncResult(refused).get(timeout=30)
    app.backend.result_consumer.stop()


@pytest.fixture
def plain_worker(valkey: PrivateValkey, redis: Redis, tmp_path: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "celery", "-A", "tests.fakes.plain_infer", "worker", "-P", "solo"]
    queues = ["-Q", "bunch.nobody.paid", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *queues], cwd=ROOT, env={**os.environ, "PLAIN_URL": valkey.url}, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def test_a_plain_celery_worker_answers(valkey: PrivateValkey, plain_worker: None) -> None:
    play(valkey, elsewhere, "a_plain_worker_answers")

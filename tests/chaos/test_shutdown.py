"""A worker and `up` leave: what is in the model is answered or given back, and nothing stays leased."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis

from tests.chaos.books import Ledger
from tests.chaos.conftest import long_only
from tests.chaos.lone import LoneWorkers
from tests.e2e.client import connected
from tests.e2e.stack import Stack
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

BATCH = 4
SENT = 20
PATIENCE_S = 60.0
CONFIG = """\
[models.tally]
source = "tests.chaos.models:Tally"
options = {{ gate = "{folder}/gate", tally = "{folder}/tally" }}
max_batch_size = 4
timeout_ms = 120000
"""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


@pytest.fixture
def valkey() -> Iterator[PrivateValkey]:
    server = PrivateValkey()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def store(valkey: PrivateValkey) -> Iterator[Redis]:
    with valkey.client() as redis:
        yield redis


@pytest.fixture
def workers(valkey: PrivateValkey, store: Redis, tmp_path: Path) -> Iterator[LoneWorkers]:
    config = CONFIG.format(folder=tmp_path)
    each = LoneWorkers(tmp_path, config, valkey.url, store, graceful_timeout_ms=30_000)
    yield each
    each.end()


def busy(workers: LoneWorkers, ledger: Ledger, folder: Path) -> subprocess.Popen[bytes]:
    """A worker with a batch inside its model, and more in the queue than it may take."""
    worker = workers.start_ready()
    ledger.send(range(SENT))
    wait_until((folder / "tally").exists, what="a batch is inside the model")
    return worker


def code_of(worker: subprocess.Popen[bytes], log: Path) -> int:
    try:
        return worker.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"still there:\n{log.read_text()[-5000:]}") from None


def test_term_answers_what_is_in_the_model_and_leaves_the_rest(
    workers: LoneWorkers, store: Redis, tmp_path: Path
) -> None:
    ledger = Ledger(store, "tally")
    worker = busy(workers, ledger, tmp_path)

    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: workers.states() == ["stopping"], what="it claims no more")
    (tmp_path / "gate").touch()

    assert code_of(worker, workers.log) == 0
    books = ledger.look()
    books.check(ledger.sent)
    assert books.leased == []
    assert BATCH <= len(books.done) <= 2 * BATCH
    assert len(books.queued) == SENT - len(books.done)
    assert books.attempts == [0] * len(books.queued)
    assert store.zcard("bunch:workers") == 0
    # What is left is the next one's, at once.
    workers.start_ready()
    wait_until(lambda: len(ledger.look().done) == SENT, what="all are answered")


@long_only
def test_term_with_a_model_that_does_not_end_gives_it_back_in_time(
    valkey: PrivateValkey, store: Redis, tmp_path: Path
) -> None:
    workers = LoneWorkers(tmp_path, CONFIG.format(folder=tmp_path), valkey.url, store, graceful_timeout_ms=1000)
    try:
        ledger = Ledger(store, "tally")
        worker = busy(workers, ledger, tmp_path)
        worker.send_signal(signal.SIGTERM)
        assert code_of(worker, workers.log) == 0
    finally:
        workers.end()
    books = ledger.look()
    books.check(ledger.sent)
    assert (len(books.queued), books.leased) == (SENT, [])


def test_quit_gives_everything_back_and_waits_for_nothing(workers: LoneWorkers, store: Redis, tmp_path: Path) -> None:
    ledger = Ledger(store, "tally")
    worker = busy(workers, ledger, tmp_path)

    worker.send_signal(signal.SIGQUIT)

    # Its graceful time is half a minute, and the model would never end.
    try:
        worker.wait(12)
    except subprocess.TimeoutExpired:
        raise AssertionError(workers.log.read_text()[-5000:]) from None
    assert "Unrecoverable error" not in workers.log.read_text()
    books = ledger.look()
    books.check(ledger.sent)
    assert (len(books.queued), books.leased) == (SENT, [])
    assert [each.removeprefix("task-") for each in books.queued[::-1]] == [str(n) for n in range(SENT)]
    assert books.attempts == [0] * SENT


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGQUIT, marks=long_only)])
def test_a_worker_leaves_while_redis_is_away(
    workers: LoneWorkers, valkey: PrivateValkey, store: Redis, tmp_path: Path, number: int
) -> None:
    worker = busy(workers, Ledger(store, "tally"), tmp_path)
    valkey.kill()
    (tmp_path / "gate").touch()
    wait_until(lambda: "Connection to broker lost" in workers.log.read_text(), what="it has noticed")

    worker.send_signal(number)

    code_of(worker, workers.log)
    assert "Unrecoverable error" not in workers.log.read_text()


def test_a_second_ctrl_c_leaves_fast_and_the_next_up_finds_it_all(tmp_path: Path) -> None:
    stack = Stack(tmp_path, CONFIG.format(folder=tmp_path))
    options = ("--workers=1", "--web-workers=1", "--no-flower")
    try:
        stack.start(*options, admission="off", queue_timeout_ms=60_000, request_timeout_ms=60_000)
        with connected(stack.port) as api:
            ids = [api.later({"n": n}) for n in range(SENT)]
        wait_until((tmp_path / "tally").exists, what="a batch is inside the model")
        below = psutil.Process(stack.process.pid).children(recursive=True)
        (worker,) = stack.pids("worker")

        stack.process.send_signal(signal.SIGINT)
        wait_until(lambda: "Warm shutdown" in stack.logs(), what="the worker has heard")
        stack.process.send_signal(signal.SIGINT)

        assert stack.process.wait(PATIENCE_S) == 1
        _, alive = psutil.wait_procs(below, timeout=10)
        assert alive == []
        assert "gave back" in stack.logs()

        (tmp_path / "gate").touch()
        stack.start(*options)
        with connected(stack.port) as api:
            results = [api.outcome(each) for each in ids]
        assert [each.get("output") for each in results] == [{"n": n} for n in range(SENT)]
        assert stack.pids("worker") != [worker]
        stack.stop()
    finally:
        stack.kill()

"""Leases and time: a slow worker loses them, a dead one at once enough, and one that computes for long keeps them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from batching.claim.registry import WorkerRegistry
from tests.chaos.books import KEYS, Ledger
from tests.chaos.lone import LoneWorkers
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

SENT = 20
# Workers beat once a second, and a busy machine holds one up.
PATIENT_TTL_S = 5.0
CONFIG = """\
[models.tally]
source = "tests.chaos.models:Tally"
options = {{ gate = "{folder}/gate", tally = "{folder}/tally" }}
max_batch_size = 4
timeout_ms = 120000
"""


pytestmark = pytest.mark.chaos


@pytest.fixture
def valkey() -> Iterator[PrivateValkey]:
    server = PrivateValkey()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis(valkey: PrivateValkey) -> Iterator[Redis]:
    with valkey.client() as redis:
        yield redis


@pytest.fixture
def workers(valkey: PrivateValkey, redis: Redis, tmp_path: Path) -> Iterator[LoneWorkers]:
    each = LoneWorkers(tmp_path, CONFIG.format(folder=tmp_path), valkey.url, redis)
    yield each
    each.end()


def computed(folder: Path) -> int:
    """The number of inputs that the model has been given."""
    return len((folder / "tally").read_text().splitlines())


def test_a_batch_that_takes_longer_than_a_lease_lives_is_computed_once(
    valkey: PrivateValkey, redis: Redis, tmp_path: Path
) -> None:
    """celery/kombu#337: whatever takes longer than the visibility timeout is given to somebody else as well."""
    config = CONFIG.format(folder=tmp_path)
    workers = LoneWorkers(tmp_path, config, valkey.url, redis, lease_ttl_ms=int(PATIENT_TTL_S * 1000))
    ledger, other = Ledger(redis, "tally"), WorkerRegistry(redis, PATIENT_TTL_S)
    try:
        workers.start_ready()
        ledger.send(range(4))
        wait_until(lambda: (tmp_path / "tally").exists() and computed(tmp_path) == 4, what="all are inside the model")
        until = time.monotonic() + 2 * PATIENT_TTL_S
        while time.monotonic() < until:
            # As another worker's heart does, which would give back the leases of whom it names here.
            assert other.beat("other", b"") == []
            time.sleep(0.1)
        (tmp_path / "gate").touch()
        wait_until(lambda: len(ledger.look().done) == 4, what="all are answered")
        assert computed(tmp_path) == 4
    finally:
        workers.end()


def test_what_a_dead_worker_held_runs_again_soon(
    valkey: PrivateValkey, redis: Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """celery/kombu PR #2558: a visibility timeout of 5 s is kept after a hundred."""
    config = CONFIG.format(folder=tmp_path)
    workers = LoneWorkers(tmp_path, config, valkey.url, redis, lease_ttl_ms=int(PATIENT_TTL_S * 1000))
    ledger = Ledger(redis, "tally")
    try:
        holder = workers.start_ready()
        ledger.send(range(4))
        wait_until(lambda: (tmp_path / "tally").exists() and computed(tmp_path) == 4, what="all are inside the model")
        workers.start_ready()
        died_at = time.monotonic()
        workers.kill(holder)
        wait_until(lambda: computed(tmp_path) >= 8, what="all are inside the other's model")
        took_s = time.monotonic() - died_at
        (tmp_path / "gate").touch()
        wait_until(lambda: len(ledger.look().done) == 4, what="all are answered")
    finally:
        workers.end()
    with capsys.disabled():
        print(f"\nagain in a model {took_s:.2f} s after their worker's death, leases of {PATIENT_TTL_S:g} s")
    # The lease, the beat that notices, and what a busy machine adds.
    assert took_s < PATIENT_TTL_S + 1.0 + 10.0


def test_answered_once_though_computed_twice(workers: LoneWorkers, redis: Redis, tmp_path: Path) -> None:
    ledger = Ledger(redis, "tally")
    slow = workers.start_ready()
    ledger.send(range(SENT))
    wait_until((tmp_path / "tally").exists, what="a batch is inside the model")
    slow.send_signal(signal.SIGSTOP)
    other = workers.start_ready()
    # Its executor goes on meanwhile, and has its outputs ready for when it wakes.
    (tmp_path / "gate").touch()
    wait_until(lambda: len(ledger.look().done) == SENT, what="the other answers everybody")
    ledger.look().check(ledger.sent)
    results = {task_id: redis.get(KEYS.result(task_id)) for task_id in ledger.sent}
    by = {json.loads(raw)["bunch"]["batch_id"].rsplit("-", 4)[1] for raw in results.values() if raw}
    attempts = sorted(json.loads(raw)["bunch"]["attempt"] for raw in results.values() if raw)

    slow.send_signal(signal.SIGCONT)
    wait_until(lambda: "the lease of a batch was lost" in workers.log.read_text(), what="it notices")

    assert by == {str(other.pid)}
    assert set(attempts) == {1, 2}
    assert results == {task_id: redis.get(KEYS.result(task_id)) for task_id in ledger.sent}
    # Nothing is held against it: it is one of the workers again.
    wait_until(lambda: len(workers.ready()) == 2, what="both are well")
    workers.kill(other)
    ledger.send(range(SENT, 2 * SENT))
    wait_until(lambda: len(ledger.look().done) == 2 * SENT, what="it goes on")
    assert slow.poll() is None

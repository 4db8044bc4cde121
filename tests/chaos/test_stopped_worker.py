"""A worker that was only slow finds its lease gone when it comes back, and keeps its outcomes to itself."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.chaos.books import KEYS, Ledger
from tests.chaos.lone import LoneWorkers
from tests.e2e.stack import wait_until
from tests.valkey import PrivateValkey

SENT = 20
CONFIG = """\
[models.tally]
source = "tests.chaos.models:Tally"
options = {{ gate = "{folder}/gate", tally = "{folder}/tally" }}
max_batch_size = 4
timeout_ms = 120000
"""


@pytest.mark.chaos
def test_answered_once_though_computed_twice(tmp_path: Path) -> None:
    valkey = PrivateValkey()
    valkey.start()
    redis = valkey.client()
    workers = LoneWorkers(tmp_path, CONFIG.format(folder=tmp_path), valkey.url, redis)
    try:
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
        wait_until(lambda: "lost the lease" in workers.log.read_text(), what="it notices")

        assert by == {str(other.pid)}
        assert set(attempts) == {1, 2}
        assert results == {task_id: redis.get(KEYS.result(task_id)) for task_id in ledger.sent}
        # Nothing is held against it: it is one of the workers again.
        wait_until(lambda: len(workers.ready()) == 2, what="both are well")
        workers.kill(other)
        ledger.send(range(SENT, 2 * SENT))
        wait_until(lambda: len(ledger.look().done) == 2 * SENT, what="it goes on")
        assert slow.poll() is None
    finally:
        workers.end()
        redis.close()
        valkey.stop()

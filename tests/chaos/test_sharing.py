"""Many callers, few questions, workers that are killed: each gets its own right answer, and nothing is left over."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config.tiers import TIERS
from tests.e2e.client import Api, connected
from tests.e2e.stack import Stack
from tests.waiting import wait_until

pytestmark = pytest.mark.chaos

CONFIG = """\
default_model = "shared"

[models.shared]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 30, item_ms = 0.5 }
collapse = true

[models.kept]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 30, item_ms = 0.5 }
cache = true
"""
CALLERS = 32
QUESTIONS = 6
KILLS = 4
BETWEEN_KILLS_S = 3.0
# However busy the machine is: what is lost is not answered within this either.
PATIENT = {"queue_timeout_ms": 60_000, "request_timeout_ms": 60_000}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    each = Stack(tmp_path, CONFIG)
    try:
        # Answers are kept for less than it takes a worker to come back.
        options = {"admission": "off", "cache_ttl_ms": 500} | PATIENT
        yield each.start("--web-workers=2", "--workers=2", "--no-flower", **options)
        each.stop()
    finally:
        each.kill()


class Caller(threading.Thread):
    """Asks until stopped; `wrong` is whatever came back that should not have."""

    def __init__(self, api: Api, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._api = api
        self._rng = random.Random(seed)
        self._stop_asking = stop
        self.answered = 0
        self.wrong: list[object] = []

    def run(self) -> None:
        while not self._stop_asking.is_set():
            fields = {"input": {"q": self._rng.randrange(QUESTIONS)}, "model": self._rng.choice(("shared", "kept"))}
            tier = self._rng.choice(TIERS).value
            try:
                self._later(fields, tier) if self._rng.random() < 0.3 else self._now(fields, tier)
                self.answered += 1
            except Exception as error:  # noqa: BLE001 - told by the test
                self.wrong.append(error)

    def _now(self, fields: dict[str, object], tier: str) -> None:
        answer = self._api.post("/v1/inference", fields, X_Tier=tier)
        told = answer.json
        if answer.status != 200 or told["output"] != fields["input"] or told["metadata"]["tier"] != tier:
            self.wrong.append(answer)

    def _later(self, fields: dict[str, object], tier: str) -> None:
        accepted = self._api.post("/v1/inference", fields, Prefer="respond-async", X_Tier=tier)
        task_id = accepted.json["task_id"]
        taken_back = self._rng.random() < 0.4 and self._api.call("DELETE", f"/v1/result/{task_id}").status == 200
        result = wait_until(lambda: self._finished(task_id), what=f"{task_id} is finished")
        result.pop("completed_at", None)
        right = {"status": "CANCELLED"} if taken_back else {"status": "SUCCESS", "output": fields["input"]}
        if result != {"task_id": task_id, **right}:
            self.wrong.append(result)

    def _finished(self, task_id: str) -> dict[str, Any] | None:
        result = self._api.outcome(task_id)
        return None if result["status"] in {"PENDING", "STARTED", "RETRY"} else result


def test_killed_workers_cost_no_caller_its_answer(stack: Stack) -> None:
    stop = threading.Event()
    rng = random.Random(7)
    with connected(stack.port) as api, stack.redis() as redis:
        callers = [Caller(api, seed, stop) for seed in range(CALLERS)]
        for each in callers:
            each.start()
        for _ in range(KILLS):
            time.sleep(BETWEEN_KILLS_S)
            os.kill(rng.choice(stack.pids("worker")), signal.SIGKILL)
            wait_until(stack.all_run, what="the worker is back")
        stop.set()
        for each in callers:
            each.join(90)
        assert not [wrong for each in callers for wrong in each.wrong]
        assert all(each.answered for each in callers)

        def left() -> list[bytes]:
            names = (b"bunch:asked:", b"bunch:joined:", b"bunch:lease:", b"bunch.shared.")
            return [key for key in redis.keys("*") if key.startswith(names)]

        wait_until(lambda: not left(), what="nothing is left over")

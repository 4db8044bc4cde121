"""Large inputs and outputs while frontends, workers and executors are killed: none is lost, none is another's, and none
stays.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from typing import Any

import pytest

from batching.blobs.store import GRACE_MS, RedisBlobs
from tests.chaos.conftest import FAULTS
from tests.chaos.faults import Fault, Scene, kill_executor, kill_frontend, kill_worker
from tests.chaos.stage import Stage
from tests.waiting import wait_until

# The stage's own, and a result's default.
REQUEST_MS = 60_000
RESULT_MS = 600_000
KINDS: tuple[Fault, ...] = (kill_executor, kill_frontend, kill_worker)
CALLERS = 4
# So many times what lies in a message.
SIZE = 150_000
PATIENCE_S = 60.0

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300 + 30 * FAULTS)]


class Caller(threading.Thread):
    """Sends requests until it is told to end, each under a key, again and again until it has its answer. Every third is
    polled for.
    """

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._rng = random.Random(seed)
        self._seed = seed
        self.ended = threading.Event()
        self.answered = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self.ended.is_set():
            name = f"{self._seed}-{self.answered}"
            value = f"{name} {self._rng.randbytes(SIZE // 2).hex()}"
            found = self._asked(name, value, polls=self.answered % 3 == 2)
            if found != value:
                self.wrong.append(f"{name}: {str(found)[:200]}")
            self.answered += 1

    def _asked(self, name: str, value: str, *, polls: bool) -> Any:
        until = time.monotonic() + PATIENCE_S
        body = json.dumps({"input": value}).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": name}
        if polls:
            headers["Prefer"] = "respond-async"
        told: Any = None
        while time.monotonic() < until:
            try:
                status, told = self._call("POST", "/v1/inference", body, headers)
                if status == 202:
                    return self._polled(told["task_id"], until)
                if status == 200:
                    return told["output"]
            except (OSError, http.client.HTTPException, ValueError) as error:
                told = repr(error)
            time.sleep(0.05)
        return told

    def _polled(self, task_id: str, until: float) -> Any:
        told: Any = None
        while time.monotonic() < until:
            try:
                _, told = self._call("GET", f"/v1/result/{task_id}?wait_ms=2000", None, {})
                if told.get("status") in {"SUCCESS", "FAILURE", "CANCELLED"}:
                    return told.get("output", told)
            except (OSError, http.client.HTTPException, ValueError) as error:
                told = repr(error)
            time.sleep(0.05)
        return told

    def _call(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


def test_no_payload_is_lost_or_mixed_up_and_none_stays(whole: Stage, rng: random.Random) -> None:
    scene = Scene(whole, None, rng)  # type: ignore[arg-type]
    callers = [Caller(whole.port, seed) for seed in range(CALLERS)]
    for each in callers:
        each.start()
    kinds = rng.sample(KINDS, len(KINDS)) if not FAULTS else [rng.choice(KINDS) for _ in range(FAULTS)]
    for fault in kinds:
        before = sum(each.answered for each in callers)
        wait_until(lambda before=before: sum(each.answered for each in callers) > before + CALLERS, what="answers")
        fault(scene)
        whole.heal()
    for each in callers:
        each.ended.set()
    for each in callers:
        each.join(2 * PATIENCE_S)
    assert [each.wrong for each in callers] == [[]] * CALLERS
    assert min(each.answered for each in callers) > len(kinds)
    wait_until(lambda: not whole.left_in_redis(), what="nothing is left to be done")
    _check_what_is_left(whole)


def _check_what_is_left(stage: Stage) -> None:
    """Only what expires by itself, within its time; and the account is of what is there."""
    with stage.redis() as redis:
        blobs = RedisBlobs(redis)
        left = {each.decode(): (redis.pttl(each), redis.strlen(each)) for each in redis.scan_iter("bunch:blob:*", 1000)}
        usage = blobs.usage()
        blobs.close()
        unwritten = usage.all_bytes - sum(size for _, size in left.values())
        # Reserved by a frontend that was killed before it had written: the account forgets it at its time, too.
        assert 0 <= unwritten <= CALLERS * (FAULTS or len(KINDS)) * 2 * SIZE
        for name, (left_ms, _) in left.items():
            # The output of a try has the name of the try too.
            most_ms = (RESULT_MS if "." in name else REQUEST_MS) + GRACE_MS
            assert 0 < left_ms <= most_ms, name
        inputs = [name for name in left if "." not in name]
        # Of frontends that were killed between writing and sending, and of repeats that nobody needed.
        assert len(inputs) <= CALLERS * (FAULTS or len(KINDS)), inputs
        if FAULTS:
            patience_s = (REQUEST_MS + GRACE_MS) / 1000 + 10
            wait_until(lambda: not any(map(redis.exists, inputs)), "all inputs have expired", patience_s=patience_s)

"""An operator sees wherever he looks what faults have taught the workers, and can take it back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.client import Api
from tests.e2e.stack import Stack
from tests.waiting import wait_until

BATCH = 4
MODEL = "quartet"


@pytest.fixture(autouse=True)
def _forgotten(stack: Stack) -> Iterator[None]:
    # Another file's failures may have left a breaker half-open, which lets one request through as its trial.
    reset(stack)
    yield
    reset(stack)


def reset(stack: Stack) -> list[dict[str, Any]]:
    done = stack.manage("reset", MODEL, "--json", f"--config={stack.config_file}")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert {row["worker"].partition("@")[0] for row in rows} == {"worker1", "worker2"}
    return rows


def row_of(stack: Stack) -> dict[str, Any]:
    rows = json.loads(stack.manage("models", "--json", f"--config={stack.config_file}").stdout)
    found: dict[str, Any] = next(row for row in rows if row["model"] == MODEL)
    return found


def gauge(api: Api, name: str) -> float | None:
    lines = api.get("/metrics").body.decode().splitlines()
    values = [line.split()[-1] for line in lines if line.startswith(f'{name}{{model="{MODEL}"}}')]
    return float(values[0]) if values else None


def told(condition: Callable[[], object], what: str) -> None:
    # Workers tell of themselves once a second.
    wait_until(condition, what=what)


def test_the_size_that_memory_had_room_for(stack: Stack, api: Api) -> None:
    assert row_of(stack)["safe_batch_size"] is None
    assert gauge(api, "bunch_safe_batch_size") is None
    answers = api.all([{"room": 2, "n": n} for n in range(BATCH)], MODEL)
    assert [answer.status for answer in answers] == [200] * BATCH
    assert {answer.json["output"]["batch"] for answer in answers} == {2}

    told(lambda: gauge(api, "bunch_safe_batch_size") == 2, "the metric shows it")
    assert row_of(stack)["safe_batch_size"] == 2
    assert "2" in stack.manage("workers", f"--config={stack.config_file}").stdout

    assert sorted(row["safe_size"] or 0 for row in reset(stack)) == [0, 2]
    told(lambda: gauge(api, "bunch_safe_batch_size") is None, "it is forgotten")
    answers = api.all(range(BATCH), MODEL)
    assert {answer.json["output"]["batch"] for answer in answers} == {BATCH}


def test_an_open_breaker(stack: Stack, api: Api) -> None:
    told(lambda: api.get("/internal/health").json["breakers"][MODEL] == "closed", "it is closed")
    assert gauge(api, "bunch_breaker_state") == 0

    def fail() -> bool:
        api.all([{"raise": "broken"}] * BATCH, MODEL, timeout_ms=500)
        return gauge(api, "bunch_breaker_state") == 2

    wait_until(fail, what="the breaker opens")
    health = api.get("/internal/health").json
    assert health["status"] == "degraded"
    assert health["breakers"][MODEL] in {"open", "half-open"}
    assert row_of(stack)["breaker"] in {"open", "half-open"}

    assert {row["breaker"] for row in reset(stack)} & {"open", "half-open"}
    told(lambda: gauge(api, "bunch_breaker_state") == 0, "it is closed")
    assert {answer.status for answer in api.all(range(BATCH), MODEL)} == {200}


def test_a_model_that_nobody_knows(stack: Stack) -> None:
    done = stack.manage("reset", "nobody", f"--config={stack.config_file}")
    assert done.returncode == 2
    assert "is not configured" in done.stderr

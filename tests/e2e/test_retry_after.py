"""Refused callers of a running stack are told when the rule lets somebody in again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest

from tests.e2e.client import Api, connected
from tests.e2e.stack import Stack
from tests.waiting import PATIENCE_S, wait_until

# 80 requests a second, in batches of eight.
MODELS = """\
default_model = "eighty"

[models.eighty]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 100, item_ms = 0 }
max_batch_size = 8
"""
AHEAD = 300


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    stack = Stack(tmp_path_factory.mktemp("retry"), MODELS)
    try:
        stack.start(
            "--web-workers=1", "--workers=1", "--no-flower",
            queue_timeout_ms=20_000, request_timeout_ms=20_000, shed_paid_ms=15_000,
        )  # fmt: skip
        with connected(stack.port) as api:
            yield api
        stack.stop()
    finally:
        stack.kill()


def test_behind_a_higher_tier_it_is_about_the_time_that_this_takes(api: Api) -> None:
    # So that its speed is known.
    api.all(range(80), "eighty")
    # At once: what goes on coming would go on, as far as anybody knows.
    ahead = ThreadPoolExecutor(1).submit(
        api.post, "/v1/inference/bulk", {"inputs": list(range(1000, 1000 + AHEAD)), "timeout_ms": 19_000}
    )
    wait_until(lambda: api.get("/internal/health").json["queue_depth"] > AHEAD / 2, what="they wait")
    told: list[tuple[float, float]] = []
    let_in_at = 0.0
    latest = time.monotonic() + PATIENCE_S
    # To its end: whoever was refused last must be let in, too.
    while not (ahead.done() and let_in_at):
        assert time.monotonic() < latest, "nobody is let in"
        asked_at = time.monotonic()
        answer = api.post(
            "/v1/inference", {"input": asked_at, "timeout_ms": 19_000}, X_Tier="free", Prefer="respond-async"
        )
        if answer.status == 503:
            assert answer.json["error"] == "SERVICE_OVERLOADED"
            told.append((asked_at, answer.json["retry_after_ms"] / 1000))
            let_in_at = 0.0
        else:
            # While a heartbeat is late no rate is known, and everybody is let in: that is not what was foretold.
            let_in_at = let_in_at or time.monotonic()
        time.sleep(0.1)
    ratios = [seconds / (let_in_at - at) for at, seconds in told]
    assert len(ratios) >= 5
    assert 0.5 <= median(ratios) <= 2, ratios
    assert ahead.result().status == 200

"""Outputs as large as a model likes: what is too large fails alone, with words, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.client import Api, connected
from tests.e2e.stack import Stack

CONFIG = """\
default_model = "wordy"

# Four requests are one batch, however far apart they arrive.
[models.wordy]
source = "tests.models:Wordy"
policy = "fixed"
max_batch_size = 4
max_wait_ms = 1500
timeout_ms = 30000
"""
LIMIT = 16 * 1024 * 1024
PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("large"), CONFIG)
    try:
        yield each.start(
            "--web-workers=1",
            "--workers=1",
            "--no-flower",
            request_timeout_ms=PATIENCE_MS,
            queue_timeout_ms=PATIENCE_MS,
        )
        each.stop()
    finally:
        each.kill()


@pytest.fixture
def api(stack: Stack) -> Iterator[Api]:
    with connected(stack.port) as api:
        yield api


def test_an_output_over_the_limit_fails_alone_and_says_by_how_much(api: Api) -> None:
    answers = api.all([10, 60_000_000, 3_000_000, 20], timeout_ms=PATIENCE_MS)
    assert [each.status for each in answers] == [200, 500, 200, 200]
    assert answers[1].error == "INFERENCE_FAILED"
    assert "60000002 bytes" in answers[1].json["message"]
    assert f"the limit is {LIMIT}" in answers[1].json["message"]
    assert [len(each.json["output"]) for each in answers if each.status == 200] == [10, 3_000_000, 20]


def test_large_outputs_of_one_batch_are_all_answered(api: Api) -> None:
    large = [api.soon(12_000_000 + n, timeout_ms=PATIENCE_MS) for n in range(4)]
    assert api.get("/readyz").status == 200
    assert [len(each.result().json["output"]) for each in large] == [12_000_000 + n for n in range(4)]

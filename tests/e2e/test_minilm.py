"""The real model in the running stack: a batch changes no answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.client import Api, connected
from tests.e2e.stack import Stack

TOLERANCE = 1e-4
MODELS = """\
[models.minilm]
source = "workers.models.minilm:MiniLM"
timeout_ms = 30000
"""
SENTENCE = "the quick brown fox jumps over lazy dogs while celery is sold by the bunch in every market"


@pytest.fixture
def minilm(tmp_path: Path) -> Iterator[Api]:
    stack = Stack(tmp_path, MODELS)
    try:
        stack.start("--web-workers=1", "--no-flower", queue_timeout_ms=9000)
        with connected(stack.port) as api:
            yield api
        stack.stop()
    finally:
        stack.kill()


@pytest.mark.slow
def test_an_embedding_is_the_same_alone_and_in_a_batch_of_mixed_lengths(minilm: Api) -> None:
    rng = random.Random(5)
    texts = [" ".join(rng.choices(SENTENCE.split(), k=1 + 3 * n)) for n in range(24)]
    alone = [minilm.infer(text).json for text in texts]
    together = [answer.json for answer in minilm.all(texts)]

    assert {each["metadata"]["batch_size"] for each in alone} == {1}
    assert max(each["metadata"]["batch_size"] for each in together) > 4
    for one, other in zip(alone, together, strict=True):
        assert len(one["output"]) == len(other["output"]) == 384
        assert max(abs(a - b) for a, b in zip(one["output"], other["output"], strict=True)) < TOLERANCE
    for bad in ("", " \n", None, 7, [texts[0]]):
        answer = minilm.infer(bad)
        assert answer.status in {400, 422}
        assert answer.error in {"INVALID_INPUT", "INPUT_REJECTED"}

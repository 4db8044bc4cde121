"""The real model in the running stack: a batch changes no answer."""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Iterator

import pytest

from tests.e2e.client import Api, connected
from tests.e2e.stack import PATIENT, Stack

TOLERANCE = 1e-4
MODELS = """\
[models.minilm]
source = "workers.models.minilm:MiniLM"
timeout_ms = 30000
"""
SENTENCE = "the quick brown fox jumps over lazy dogs while celery is sold by the bunch in every market"


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    stack = Stack(tmp_path_factory.mktemp("minilm"), MODELS)
    try:
        stack.start("--web-workers=1", "--no-flower", admission="off", **PATIENT)
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


@pytest.mark.slow
def test_it_answers_the_doors_of_others_without_any_setting(minilm: Api) -> None:
    texts = [SENTENCE, "a bunch of celery"]
    ours = [minilm.infer(text).json for text in texts]
    forms = {
        form: minilm.post("/v1/embeddings", {"model": "minilm", "input": texts, "encoding_format": form}).json
        for form in ("float", "base64")
    }
    for one, plain, packed in zip(ours, forms["float"]["data"], forms["base64"]["data"], strict=True):
        assert plain["embedding"] == pytest.approx(one["output"], abs=TOLERANCE)
        numbers = struct.unpack("<384f", base64.b64decode(packed["embedding"]))
        assert numbers == pytest.approx(plain["embedding"], abs=1e-6)
    tokens = sum(each["metadata"]["tokens_used"] for each in ours)
    assert forms["float"]["usage"] == forms["base64"]["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert minilm.post("/embed", {"inputs": texts[1]}).json == [pytest.approx(ours[1]["output"], abs=TOLERANCE)]

    body = {"query": "vegetables", "documents": ["the central bank", texts[1]]}
    ranked = minilm.post("/v1/rerank", body).json
    assert [each["index"] for each in ranked["results"]] == [1, 0]
    assert ranked["usage"]["total_tokens"] > 10

    long = {"model": "minilm", "input": ["word " * 400, "short"]}
    refused = minilm.post("/v1/embeddings", long)
    assert refused.status == 422
    assert refused.json["error"]["message"] == "input[0]: the text has 402 tokens; the limit is 256"
    cut = minilm.post("/v1/embeddings", long | {"parameters": {"truncate": True}}).json
    assert [each.get("truncated") for each in cut["data"]] == [True, None]
    assert cut["usage"]["total_tokens"] == 256 + 3

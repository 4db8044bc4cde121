"""Where the limits are: what just fits is served."""

from __future__ import annotations

import json

from tasks.protocol.json_structure import MAX_DEPTH
from tests.e2e.client import Api

LIMIT = 1024 * 1024


def test_a_body_of_exactly_the_limit(api: Api) -> None:
    empty = len(json.dumps({"input": ""}))
    fits = api.infer("x" * (LIMIT - empty))
    too_large = api.infer("x" * (LIMIT - empty + 1))

    assert fits.status == 200
    assert len(fits.json["output"]) == LIMIT - empty
    assert (too_large.status, too_large.error) == (413, "PAYLOAD_TOO_LARGE")


def test_the_largest_inputs_together(api: Api) -> None:
    """Neither one script call nor one reply is too large for what many large requests make of it."""
    texts = [str(n) * (LIMIT - 100) for n in range(8)]
    for text, answer in zip(texts, api.all(texts, "quartet"), strict=True):
        assert answer.status == 200
        assert answer.json["output"]["echo"] == text


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(api: Api) -> None:
    answers = api.all(range(20), "narrow")

    refused = [answer for answer in answers if answer.status != 200]
    # Two in the queue, where all come before the first is claimed; and as many as find a place that becomes free.
    assert 4 <= len(refused) <= 18
    for answer in refused:
        assert (answer.status, answer.error) == (503, "SERVICE_OVERLOADED")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json["retry_after_ms"] >= 1
        assert "narrow" in answer.json["message"]
    results = api.post("/v1/inference/bulk", {"inputs": list(range(20)), "model": "narrow"}).json["results"]
    assert {result.get("error") for result in results} == {None, "SERVICE_OVERLOADED"}


def test_as_deep_as_is_allowed(api: Api) -> None:
    nested: object = []
    for _ in range(MAX_DEPTH - 2):
        nested = [nested]
    for model in ("echo", "moody"):
        assert api.infer(nested, model).status == 200

"""The shipped model with its real weights, on whatever device there is."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from batching.request import Done, Ok, Rejected, Work
from config.settings import ModelSettings
from workers.executor.process_executor import ProcessExecutor
from workers.models import InputRejected, InvalidInput
from workers.models.minilm import MAX_CHARS_PER_TOKEN, MiniLM

TOLERANCE = 1e-4
MAX_TOKENS = MiniLM.max_input_length
# The first numbers that sentence_transformers 6.2 gives for the same weights.
REFERENCE = {
    "A bunch is what celery is sold by.": [0.018019, -0.070876, -0.051429, 0.014514, 0.044856, -0.040611],
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich; 数字 42!": [
        *(-0.027153, 0.091591, 0.019516, 0.03287, -0.031426, 0.040191)
    ],
}


@pytest.fixture(scope="module")
def model() -> MiniLM:
    made = MiniLM()
    made.load("cpu")
    return made


def run(model: MiniLM, inputs: list[Any], **parameters: Any) -> list[Any]:
    return run_each(model, inputs, [parameters] * len(inputs))


def run_each(model: MiniLM, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
    return model.finish(model.predict(model.prepare(inputs, parameters), []))


def embed(model: MiniLM, *texts: str) -> list[list[float]]:
    return [each.value for each in run(model, list(texts))]


def distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def likeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_embeddings_are_384_numbers_of_length_one(model: MiniLM) -> None:
    (vector,) = embed(model, "hello")
    assert len(vector) == 384
    assert math.sqrt(likeness(vector, vector)) == pytest.approx(1.0, abs=1e-5)


def test_the_numbers_are_those_of_the_reference_implementation(model: MiniLM) -> None:
    for vector, expected in zip(embed(model, *REFERENCE), REFERENCE.values(), strict=True):
        assert distance(vector[: len(expected)], expected) < TOLERANCE


def test_a_text_has_the_same_embedding_alone_and_among_others(model: MiniLM) -> None:
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "and", "embeddings"]
    rng = random.Random(7)
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 60))) for _ in range(32)]
    together = embed(model, *texts)
    assert max(distance(each, embed(model, text)[0]) for each, text in zip(together, texts, strict=True)) < TOLERANCE


def test_the_end_of_a_long_text_counts(model: MiniLM) -> None:
    text = "the weather is fine today " * 40
    one, other = embed(model, text + "and the market crashed", text + "and the cat slept well")
    assert distance(one, other) > 10 * TOLERANCE


def test_like_texts_are_near_each_other(model: MiniLM) -> None:
    cat, kitten, bond = embed(model, "a cat sits on the mat", "a kitten on a rug", "bond yields rose sharply")
    assert likeness(cat, kitten) > likeness(cat, bond) + 0.2


def test_what_it_refuses_harms_no_neighbour(model: MiniLM) -> None:
    inputs = ["fine", 3, None, "", " \n", "\u200b", "word " * MAX_TOKENS, "y" * 10**6, "also fine"]
    outputs = run(model, inputs)
    assert distance(outputs[0].value, embed(model, "fine")[0]) < TOLERANCE
    assert distance(outputs[-1].value, embed(model, "also fine")[0]) < TOLERANCE
    assert [type(each) for each in outputs[1:3]] == [InvalidInput] * 2
    assert [type(each) for each in outputs[3:-1]] == [InputRejected] * 5
    told = [each.message for each in outputs[3:-1]]
    assert "empty" in told[0]
    assert f"the limit is {MAX_TOKENS}" in told[3]
    assert f"the limit is {MAX_TOKENS * MAX_CHARS_PER_TOKEN}" in told[4]


def test_a_batch_of_refusals_alone(model: MiniLM) -> None:
    assert all(isinstance(each, InputRejected) for each in run(model, ["", 1]))


def test_the_longest_text_that_is_taken(model: MiniLM) -> None:
    longest = "word " * (MAX_TOKENS - 2)
    accepted, refused = run(model, [longest, longest + "word"])
    assert (len(accepted.value), accepted.metadata) == (384, {"tokens_used": MAX_TOKENS})
    assert isinstance(refused, InputRejected)


def test_a_text_is_cut_where_its_request_asks_for_that_and_its_answer_says_so(model: MiniLM) -> None:
    longest = "word " * (MAX_TOKENS - 2)
    texts = ["two words", longest, longest + "gone", "gone" + longest, longest * 100]
    outputs = run(model, texts, truncate=True)
    whole = {"tokens_used": MAX_TOKENS}
    assert [each.metadata for each in outputs] == [{"tokens_used": 4}, whole, *[whole | {"truncated": True}] * 3]
    assert distance(outputs[2].value, outputs[1].value) < TOLERANCE, "its end is lost"
    assert distance(outputs[3].value, outputs[1].value) > 10 * TOLERANCE, "its beginning counts"
    assert distance(outputs[4].value, outputs[1].value) < TOLERANCE
    assert isinstance(run(model, texts, truncate="yes")[2], InputRejected)


def test_a_text_loses_its_beginning_where_its_request_says_so(model: MiniLM) -> None:
    longest = "word " * (MAX_TOKENS - 2)
    texts = [longest, "gone " + longest, "gone " * 10**5 + longest]
    whole, cut, much = run(model, texts, truncate=True, truncation_direction="left")
    assert cut.metadata == much.metadata == {"tokens_used": MAX_TOKENS, "truncated": True}
    assert distance(cut.value, whole.value) < TOLERANCE
    assert distance(much.value, whole.value) < TOLERANCE


def test_an_embedding_keeps_its_length_where_its_request_says_so(model: MiniLM) -> None:
    scaled, kept = run_each(model, ["two words"] * 2, [{}, {"normalize": False}])
    lengths = [sum(number * number for number in each.value) ** 0.5 for each in (scaled, kept)]
    assert lengths[0] == pytest.approx(1, abs=1e-4)
    assert lengths[1] > 1.1
    assert distance([number / lengths[1] for number in kept.value], scaled.value) < TOLERANCE


def test_a_pair_is_as_relevant_as_its_texts_are_near(model: MiniLM) -> None:
    pairs = [{"query": "a vegetable", "text": each} for each in ("a bunch of celery", "the central bank")]
    near, far = run(model, pairs, normalize=False)
    assert 0 < far.value < near.value < 1
    (raw,) = run(model, pairs[:1], raw_scores=True)
    query, text = embed(model, "a vegetable", "a bunch of celery")
    assert raw.value == pytest.approx(sum(one * other for one, other in zip(query, text, strict=True)), abs=1e-4)
    assert near.value == pytest.approx((1 + raw.value) / 2, abs=1e-6)
    counted = run(model, ["a vegetable", "a bunch of celery"])
    assert near.metadata["tokens_used"] == sum(each.metadata["tokens_used"] for each in counted)
    refused = run(model, [{"query": "", "text": "a"}, {"query": "a", "text": 1}, {"query": "a"}])
    assert [type(each) for each in refused] == [InputRejected, InvalidInput, InvalidInput]
    assert [each.message.partition(":")[0] for each in refused[:2]] == ["query", "text"]


def test_bounds_that_the_weights_cannot_follow_are_refused() -> None:
    with pytest.raises(ValueError, match="512"):
        MiniLM(max_tokens=513).load("cpu")


def test_it_serves_from_an_executor() -> None:
    settings = ModelSettings(name="minilm", source="workers.models.minilm:MiniLM", timeout_ms=60_000)
    executor = ProcessExecutor(settings, 0)
    executor.start()
    try:
        assert executor.wait_ready(100), executor.error
        executor.send(Work("a", [b'"one"', b'""', b'"three"'], [b"{}"] * 3))
        done = executor.receive(60)
        assert isinstance(done, Done)
        one, refused, three = done.outcomes
        assert isinstance(one, Ok)
        assert isinstance(refused, Rejected)
        assert isinstance(three, Ok)
        assert one.output.count(b",") == 383
        assert one.metadata == b'"tokens_used":3'
    finally:
        executor.stop(5)

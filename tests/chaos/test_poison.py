"""A full batch with inputs that harm the model: each of them fails alone, and can be tried again once it is mended."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from redis import Redis

from tasks.fleet.dead_letters import DeadLetters
from tests.chaos.conftest import long_only
from tests.chaos.stage import Stage
from tests.e2e.client import Answer, Api
from tests.shards import places_of
from tests.waiting import wait_until

SIZE = 64
PATIENCE_MS = 60_000

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


@pytest.fixture
def store(whole: Stage) -> Iterator[Redis]:
    with whole.redis() as redis:
        letters = DeadLetters(places_of(redis))
        for each in letters.ids():
            letters.drop(each)
        yield redis


def batch(cursed: int, curse: str) -> list[object]:
    """A batch of distinct inputs, `cursed` of them spread over it."""
    places = {(2 * n + 1) * SIZE // (2 * cursed) for n in range(cursed)}
    return [{"n": n, "curse": curse} if n in places else {"n": n} for n in range(SIZE)]


def check_answers(inputs: list[object], answers: list[Answer], curse: str) -> list[Answer]:
    """The healthy ones have their own answers; returns those of the cursed."""
    harmed = []
    for value, answer in zip(inputs, answers, strict=True):
        assert isinstance(value, dict)
        if "curse" in value:
            assert (answer.status, answer.error) == (500, "INFERENCE_FAILED"), (curse, answer)
            harmed.append(answer)
        else:
            assert answer.status == 200, (value, answer)
            assert answer.json["output"] == value
    return harmed


def extra_passes(api: Api) -> float:
    lines = api.get("/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith('bunch_extra_passes_total{model="cursed"'))


@pytest.mark.parametrize("cursed", [1, 2, 5])
def test_inputs_that_raise_fail_alone(store: Redis, api: Api, cursed: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = extra_passes(api)
    inputs = batch(cursed, "raise")
    answers = api.all(inputs, "cursed", timeout_ms=PATIENCE_MS)

    harmed = check_answers(inputs, answers, "raise")
    assert all("cursed" in each.json["message"] for each in harmed)
    # One batch, gone through in halves: no request was sent twice.
    sizes = {answer.json["metadata"]["batch_size"] for answer in answers if answer.status == 200}
    batches = {answer.json["metadata"]["batch_id"] for answer in answers if answer.status == 200}
    assert sizes == {SIZE}
    assert len(batches) == 1
    assert len(DeadLetters(places_of(store)).ids()) == cursed
    # Workers tell once a second. 64, 32 … 1: six halvings, two halves each, for each culprit at most.
    wait_until(lambda: extra_passes(api) > before, what="the passes are counted")
    assert 12 <= extra_passes(api) - before <= 12 * cursed
    with capsys.disabled():
        print(f"\n{cursed} of {SIZE}: {extra_passes(api) - before:.0f} extra passes, at most {12 * cursed}")


@pytest.mark.parametrize("curse", ["crash", "hang", "gorge", pytest.param("devour", marks=long_only)])
@pytest.mark.parametrize("cursed", [1, pytest.param(2, marks=long_only)])
def test_inputs_that_kill_fail_alone(whole: Stage, store: Redis, api: Api, curse: str, cursed: int) -> None:
    inputs = batch(cursed, curse)
    answers = api.all(inputs, "cursed", timeout_ms=PATIENCE_MS)
    check_answers(inputs, answers, curse)

    letters = DeadLetters(places_of(store)).newest()
    assert len(letters) == cursed
    for letter in letters:
        assert letter.model == "cursed"
        assert letter.attempts == 3
        # A machine that is busy enough runs out of the batch's time before it runs out of memory.
        assert letter.lost == 3 or curse == "gorge"
        assert ("longer than timeout_ms = 1000" in letter.reason) or curse != "hang"
        assert ("SIGSEGV" in letter.reason) or curse != "crash"
    # Whoever comes next is served as if nothing had been.
    after = batch(1, "none")
    answers = api.all(after, "cursed", timeout_ms=PATIENCE_MS)
    assert [answer.status for answer in answers] == [200] * SIZE
    assert {answer.json["metadata"]["batch_size"] for answer in answers} == {SIZE}


def test_a_dead_letter_is_answered_once_the_model_is_mended(whole: Stage, store: Redis, api: Api) -> None:
    value = {"n": 1, "curse": "crash"}
    task_id = api.later(value, "cursed")
    assert api.result(task_id, wait_ms=PATIENCE_MS)["status"] == "FAILURE"
    shown = json.loads(whole.manage("dlq", "show", task_id, "--json", whole.config).stdout)
    assert (shown["attempts"], shown["lost"]) == (3, 3)

    whole.repaired.touch()
    try:
        assert whole.manage("dlq", "replay", task_id, whole.config).returncode == 0
        result = api.result(task_id, wait_ms=PATIENCE_MS)
    finally:
        whole.repaired.unlink()

    assert (result["status"], result["output"]) == ("SUCCESS", value)
    assert DeadLetters(places_of(store)).ids() == []

"""A process whose device is poisoned by one input: that input alone fails, in as few processes as can tell it apart."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.e2e.client import Answer, Api, connected
from tests.e2e.stack import Stack
from tests.waiting import wait_until

SIZE = 64
PATIENCE_MS = 60_000
CONFIG = """\
default_model = "poisoned"

# The first call of a test fills a batch, however slowly its requests come.
[models.poisoned]
source = "tests.chaos.models:Poisoned"
policy = "fixed"
max_batch_size = 64
max_wait_ms = 1500

[models.broken]
source = "tests.chaos.models:Broken"
max_batch_size = 64
"""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("poisoned"), CONFIG)
    patient = {"admission": "off", "queue_timeout_ms": PATIENCE_MS, "request_timeout_ms": PATIENCE_MS}
    try:
        yield each.start("--web-workers=1", "--workers=1", "--no-flower", **patient)
        each.stop()
    finally:
        each.kill()


@pytest.fixture
def api(stack: Stack) -> Iterator[Api]:
    with connected(stack.port) as api:
        yield api


def replacements(api: Api, model: str) -> dict[str, int]:
    """The number of processes that were replaced so far, by reason."""
    text = api.get("/metrics").body.decode()
    rows = re.findall(
        rf'^bunch_executor_replacements_total\{{model="{model}",reason="(\w+)"\}} (\S+)$', text, re.MULTILINE
    )
    return {reason: int(float(count)) for reason, count in rows if float(count)}


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {reason: count - before.get(reason, 0) for reason, count in after.items() if count > before.get(reason, 0)}


def statuses(answers: list[Answer]) -> list[int]:
    return [each.status for each in answers]


@pytest.mark.parametrize("place", [0, 40, 63])
@pytest.mark.parametrize(("poison", "reasons"), [("assert", {"device"}), ("wordless", {"barren"})])
def test_a_poisoning_input_fails_alone(api: Api, poison: str, reasons: set[str], place: int) -> None:
    before = replacements(api, "poisoned")
    inputs: list[object] = [{"n": n} for n in range(SIZE)]
    inputs[place] = {"n": place, "poison": poison}

    answers = api.all(inputs, "poisoned", timeout_ms=PATIENCE_MS)

    assert statuses(answers) == [500 if n == place else 200 for n in range(SIZE)]
    assert answers[place].error == "INFERENCE_FAILED"
    for n, answer in enumerate(answers):
        assert n == place or answer.json["output"] == inputs[n]
    # One for the batch, one for the culprit that was alone in the next: no process can tell earlier.
    wait_until(lambda: sum(grown(before, replacements(api, "poisoned")).values()) == 2, what="replacements are counted")
    assert grown(before, replacements(api, "poisoned")).keys() == reasons
    after = [status for n in range(5) for status in statuses(api.all(list(range(n, n + SIZE)), "poisoned"))]
    assert after == [200] * len(after)
    assert sum(grown(before, replacements(api, "poisoned")).values()) == 2


def test_an_error_that_surfaces_in_the_following_call_fails_nobody_there(api: Api) -> None:
    before = replacements(api, "poisoned")
    assert api.infer({"poison": "later"}, "poisoned", timeout_ms=PATIENCE_MS).status == 200
    answers = api.all([{"n": n} for n in range(SIZE)], "poisoned", timeout_ms=PATIENCE_MS)
    assert statuses(answers) == [200] * SIZE
    wait_until(lambda: grown(before, replacements(api, "poisoned")) == {"device": 1}, what="replacements are counted")


def test_an_input_that_fails_without_harm_costs_no_process(api: Api) -> None:
    before = replacements(api, "poisoned")
    assert api.infer({"n": 0}, "poisoned").status == 200
    for _ in range(4):
        assert api.infer({"fail": True}, "poisoned", timeout_ms=PATIENCE_MS).status == 500
    failing: list[object] = [{"fail": n} for n in range(SIZE)]
    assert statuses(api.all(failing, "poisoned", timeout_ms=PATIENCE_MS)) == [500] * SIZE
    assert api.infer({"n": 1}, "poisoned", timeout_ms=PATIENCE_MS).status == 200
    assert grown(before, replacements(api, "poisoned")) == {}


def test_a_model_that_fails_whatever_it_is_given_says_so_to_each_and_is_not_loaded_for_ever(api: Api) -> None:
    answers = api.all([{"n": n} for n in range(SIZE)], "broken", timeout_ms=PATIENCE_MS)
    assert statuses(answers) == [500] * SIZE
    assert {each.error for each in answers} == {"INFERENCE_FAILED"}
    wait_until(lambda: sum(replacements(api, "broken").values()) == 3, what="replacements are counted")

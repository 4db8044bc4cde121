"""Executors with allowed sizes, overlapping stages and a spare, in a running stack."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import Api, connected
from tests.e2e.stack import PATIENT, Stack
from tests.waiting import wait_until

MODELS = """\
[models.shaped]
source = "tests.fakes.shaped_models:Shaped"
batch_sizes = [1, 4, 16]
warmup_input = "warm"
cache = false

[models.stages]
source = "tests.fakes.shaped_models:Stages"
cache = false

[models.spared]
source = "workers.models.simulated:Simulated"
options = { load_ms = 1000, batch_ms = 1 }
spare = true
cache = false
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("executors"), MODELS)
    try:
        yield each.start("--web-workers=1", "--no-flower", admission="off", **PATIENT)
        each.stop()
    finally:
        each.kill()


@pytest.fixture(scope="module")
def api(stack: Stack) -> Iterator[Api]:
    with connected(stack.port) as api:
        yield api


def metric(api: Api, sample: str) -> float:
    """The value of one sample; 0 if it is not there yet."""
    lines = api.get("/metrics").body.decode().splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(sample + " ")), 0.0)


def executor_of(stack: Stack, model: str) -> dict[str, Any]:
    workers = json.loads(stack.manage("workers", "--json").stdout)
    return next(each for worker in workers for each in worker["models"] if each["model"] == model)


def test_no_other_size_reaches_the_model_and_callers_see_their_own(api: Api) -> None:
    answers = [each for _ in range(3) for each in api.all([f"text {n}" for n in range(30)], "shaped")]
    assert {each.status for each in answers} == {200}
    sizes = {size for each in answers for size in each.json["output"][1]}
    assert sizes <= {1, 4, 16}
    assert [each.json["output"][1][:3] for each in answers] == [[16, 4, 1]] * len(answers), "each was warmed up"
    batches: dict[str, list[int]] = {}
    for each in answers:
        batches.setdefault(each.json["metadata"]["batch_id"], []).append(each.json["metadata"]["batch_size"])
    assert all(told == [len(told)] * len(told) for told in batches.values()), "padding is no request"
    padded = sum(next(size for size in (1, 4, 16) if size >= len(told)) - len(told) for told in batches.values())
    wait_until(lambda: metric(api, 'bunch_padding_total{model="shaped"}') == padded, what="padding is counted")


def test_an_input_that_kills_the_process_in_a_stage_fails_alone(stack: Stack, api: Api) -> None:
    poison = {"in": "prepare", "do": "die"}
    answers = api.all([*range(10), poison, *range(10, 40)], "stages")
    assert [each.status for each in answers] == [200] * 10 + [500] + [200] * 30
    assert answers[10].error == "INFERENCE_FAILED"
    assert [each.json["output"] for each in answers if each.status == 200] == [*range(10), *range(10, 40)]


def test_the_spare_serves_when_the_process_ends(stack: Stack, api: Api) -> None:
    assert api.infer("before", "spared").status == 200
    wait_until(lambda: executor_of(stack, "spared")["spare_pid"], what="the spare is loaded")
    before = executor_of(stack, "spared")
    os.kill(before["pid"], signal.SIGKILL)
    answer = api.infer("after", "spared")
    assert (answer.status, answer.json["output"]) == (200, "after")
    replaced = 'bunch_executor_replacements_total{model="spared",reason="exit"}'
    wait_until(lambda: metric(api, replaced) == 1, what="the replacement is counted")
    wait_until(lambda: executor_of(stack, "spared")["restarts"] == 1, what="the restart is told")
    assert executor_of(stack, "spared")["pid"] == before["spare_pid"]

"""An executor whose model does not load: what is told, and how often it is tried again."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from batching.executor import ExecutorState
from config.settings import ModelSettings
from tests.integration import executors
from tests.integration.executors import LONG_S, Start
from tests.waiting import wait_until
from workers.executor.process_executor import FIRST_BACKOFF_S

# Fixtures.
build = executors.build


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"source": "workers.models.shout:batchstring", "max_batch_size": 101}, "max_batch_size is 101"),
        ({"source": "no.such.module:Model"}, "no module"),
        ({"source": "tests.fakes.models:NoSuchModel"}, "has no 'NoSuchModel'"),
        ({"length_buckets": (8,)}, "has no length(input)"),
        (
            {"source": "tests.fakes.shaped_models:Shaped", "batch_sizes": (1, 64), "warmup_input": "refused"},
            "warmup_input: ValueError: not this one",
        ),
        ({"source": "tests.fakes.models:DiesLoading"}, "exited with status 3 while the model was loading"),
        ({"source": "tests.fakes.models:LoadsForever", "start_timeout_ms": 400}, "start_timeout_ms"),
    ],
)
def test_a_failed_start_says_why(build: Start, settings: dict[str, Any], told: str) -> None:
    executor = build(**settings)
    executor.start()
    wait_until(lambda: executor.state is ExecutorState.FAILED)
    assert told in (executor.error or "")


def test_starts_are_repeated_ever_more_slowly(build: Start) -> None:
    executor = build("tests.fakes.models:DiesLoading")
    began = time.monotonic()
    executor.start()
    wait_until(lambda: executor.restarts == 3)
    assert time.monotonic() - began >= FIRST_BACKOFF_S * (1 + 2 + 4)


@pytest.mark.parametrize(
    "source", ["tests.fakes.models:Absent", "tests.fakes.absent:Puppet", "tests.fakes.models:json"]
)
def test_a_source_that_leads_to_no_model_is_tried_once_and_again_after_a_reload(
    build: Start, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    executor = build(source)
    executor.start()
    wait_until(lambda: executor.state is ExecutorState.FAILED, what="it has failed")
    # Several times as long as the pause before a second try.
    time.sleep(10 * FIRST_BACKOFF_S)
    assert executor.restarts == 0
    assert executor.error
    (record,) = [each for each in caplog.records if "the executor did not start" in each.message]
    assert "when the model is reloaded" in record.message
    executor.replace(ModelSettings(name="m", source="tests.fakes.models:Puppet", cache=False))
    assert executor.state is not ExecutorState.FAILED, "who waits for the reload would take the old error for its own"
    assert executor.wait_ready(LONG_S), executor.error


def test_a_start_that_fails_after_its_model_was_replaced_says_nothing_about_the_new_one(build: Start) -> None:
    executor = build("tests.fakes.models:LoadsForever", start_timeout_ms=2000)
    executor.start()
    wait_until(lambda: executor.pid is not None, what="its process is there")
    executor.replace(ModelSettings(name="m", source="tests.fakes.models:Puppet", cache=False))
    assert executor.wait_ready(LONG_S), executor.error
    assert executor.error is None


def test_a_start_that_fails_in_the_same_way_each_time_is_logged_once(
    build: Start, caplog: pytest.LogCaptureFixture
) -> None:
    executor = build("tests.fakes.models:DiesLoading")
    executor.start()
    wait_until(lambda: executor.restarts >= 2, what="it is tried again")
    errors = [
        each
        for each in caplog.records
        if "the executor did not start" in each.message and each.levelno >= logging.ERROR
    ]
    assert len(errors) == 1

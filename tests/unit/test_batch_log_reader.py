"""Arrivals and windows from the batch log's records, and what a tuned model is changed by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from config.settings import ModelSettings
from tasks.fleet.desired_state import changes_to, tuned
from tasks.observability.batch_log import UNSETTLED, BatchLog, BatchRecord, Member
from tasks.observability.batch_log_reader import BatchLogPeriod, arrivals, read, refused_at_the_door, window
from tasks.observability.metrics import SharedMetrics


class Records:
    """A batch log of two batches; the second one had to try a request of the first again."""

    def records(self, since_ms: float = 0) -> Iterator[BatchRecord]:
        yield BatchRecord(
            id="b2", model="m", claimed_ms=2000, wait_ms=1, turn_ms=20, reply_ms=2.5,
            members=[Member("again", 1, 1, 0, 990, "OK"), Member("refused", 0, 0, 0, 100, "INPUT_REJECTED")],
        )  # fmt: skip
        yield BatchRecord(
            id="b1", model="m", claimed_ms=1100, turn_ms=30,
            members=[
                Member("first", 2, 0, 0, 100, "OK"),
                Member("again", 1, 0, 0, 90),
                Member("plain", 1, 0, -1, -1, "OK"),
                Member("late", 1, 0, 0, 80, "DEADLINE_EXCEEDED"),
            ],
        )  # fmt: skip
        yield BatchRecord(id="b3", model="other", claimed_ms=1, members=[Member("o", 1, 0, 0, 0, "OK")])


@pytest.fixture
def past() -> list[BatchLogPeriod]:
    return read(cast("BatchLog", Records()), "m")


def test_each_request_is_there_once_with_its_end(past: list[BatchLogPeriod]) -> None:
    assert [(each.arrived_ms, each.ended_ms, each.rank, each.code, each.batch) for each in past] == [
        (1000, 1130, 2, "OK", "b1"),
        (1010, 2023.5, 1, "OK", "b2"),
        (1020, 1130, 1, "DEADLINE_EXCEEDED", "b1"),
        (1900, 2023.5, 0, "INPUT_REJECTED", "b2"),
    ]
    assert Member("x", 0, 0).code == UNSETTLED


def test_arrivals_begin_with_the_first(past: list[BatchLogPeriod]) -> None:
    assert arrivals(past, 1005, 1900) == ([0.0, 0.01], [1, 1])
    assert arrivals(past, 5000, 6000) == ([], [])


def test_a_window_holds_those_who_ended_in_it(past: list[BatchLogPeriod]) -> None:
    early = window(past, 1000, 1500, slo_s=0.2, refused=1)
    # One answered in time, one late, one refused at the door.
    assert (early.asked, early.lost, early.in_time, early.mean_batch, early.seconds) == (3, 2, 1, 2.0, 0.5)
    # What the model refuses is its caller's affair.
    late = window(past, 1500, 2500, slo_s=0.2, refused=0)
    assert (late.asked, late.lost, late.in_time) == (1, 0, 0)
    assert window(past, 0, 10, slo_s=0.2, refused=0).asked == 0


def test_refusals_are_those_of_the_model_at_the_door() -> None:
    class Shared:
        def samples(self) -> dict[str, Any]:
            return {
                "bunch_requests_total": [
                    ({"model": "m", "tier": "paid", "code": "SERVICE_OVERLOADED"}, 3.0),
                    ({"model": "m", "tier": "free", "code": "SERVICE_OVERLOADED"}, 4.0),
                    ({"model": "m", "tier": "free", "code": "OK"}, 9.0),
                    ({"model": "other", "tier": "free", "code": "SERVICE_OVERLOADED"}, 9.0),
                ]
            }

    assert refused_at_the_door(cast("SharedMetrics", Shared()), "m") == 7


FILE = ModelSettings(name="m", source="a:B", policy="pid", max_batch_size=64, policy_options={"target_ms": 9.0})


@pytest.mark.parametrize(
    ("before", "wanted", "changes"),
    [
        ({}, {"policy": "pid", "max_batch_size": 64, "target_ms": 9.0}, {}),
        ({}, {"policy": "fixed", "max_batch_size": 64, "max_wait_ms": 5}, {"policy": "fixed", "max_wait_ms": 5}),
        # What the file says is not tuned any more, and what is tuned already is left alone.
        (
            {"policy": "slo", "spare": 2, "max_wait_ms": 5},
            {"policy": "pid", "max_wait_ms": 5},
            {"policy": "", "spare": ""},
        ),
        ({"policy": "slo"}, {"policy": "slo", "slo_ms": 80.0}, {"slo_ms": 80.0}),
        ({}, {"policy": "pid", "kd": 0.0}, {"kd": 0.0}),
    ],
)
def test_the_changes_make_what_is_wanted_hold(
    before: dict[str, Any], wanted: dict[str, Any], changes: dict[str, Any]
) -> None:
    found = changes_to(FILE, before, wanted)
    assert found == changes
    after = {key: value for key, value in {**before, **found}.items() if value != ""}
    now = tuned(FILE, after)
    for key, value in wanted.items():
        assert {
            **now.policy_options,
            **{name: getattr(now, name) for name in ("policy", "max_batch_size", "max_wait_ms")},
        }[key] == value

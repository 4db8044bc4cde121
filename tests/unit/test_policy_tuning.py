"""Policies by name, and tuned while they run."""

from __future__ import annotations

import pytest

from batching.policy import (
    POLICIES,
    Adaptive,
    FixedWindow,
    SloAware,
    TuneError,
    WhenIdle,
    knobs,
    make,
    name_of,
    retuned,
)


@pytest.mark.parametrize("name", POLICIES)
def test_made_by_name_and_told_by_it(name: str) -> None:
    policy = make(name, 32, 0.02, {})
    assert name_of(policy) == name
    assert policy.max_batch_size == 32
    assert knobs(policy).get("max_wait_ms", 20) == pytest.approx(20)


@pytest.mark.parametrize("name", POLICIES)
def test_what_it_shows_it_takes(name: str) -> None:
    policy = make(name, 32, None, {})
    assert knobs(retuned(policy, {key: str(value) for key, value in knobs(policy).items()})) == knobs(policy)


def test_changes_come_as_people_write_them() -> None:
    policy = FixedWindow(64, 0.05)
    assert retuned(policy, {"max_wait_ms": "20", "max_batch_size": "16"}) == FixedWindow(16, 0.02)
    assert policy == FixedWindow(64, 0.05)


def test_another_policy_keeps_what_both_have() -> None:
    assert retuned(FixedWindow(64, 0.05), {"policy": "slo", "slo_ms": 200}) == SloAware(64, 0.05, slo_s=0.2)
    assert retuned(FixedWindow(64, 0.05), {"policy": "idle"}) == WhenIdle(64)
    assert retuned(WhenIdle(8), {"policy": "adaptive"}) == Adaptive(8, 0.02)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_wait": 5}, "max_wait: fixed has no such option"),
        ({"max_wait_ms": -1}, "max_wait_ms=-1: must be milliseconds from 0 to 60000"),
        ({"max_wait_ms": "nan"}, "max_wait_ms=nan"),
        ({"max_wait_ms": "inf"}, "max_wait_ms=inf"),
        ({"max_batch_size": 0}, "max_batch_size=0: must be from 1"),
        ({"max_batch_size": 1.5}, "whole number"),
        ({"max_batch_size": "many"}, "must be a number"),
        ({"max_batch_size": "nan"}, "must be from 1"),
        ({"policy": "best"}, "must be one of adaptive"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_changed(changes: dict[str, object], said: str) -> None:
    with pytest.raises(TuneError, match=said):
        retuned(FixedWindow(64, 0.05), changes)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(TuneError) as caught:
        retuned(FixedWindow(64, 0.05), {"a": 1, "max_wait_ms": "x"})
    assert len(caught.value.problems) == 2

"""The loads of a benchmark, and the order in which a system gets them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.benchmarks import measure as module
from tests.benchmarks.load import Load
from tests.benchmarks.measure import ONE_BY_ONE, measure
from tests.benchmarks.open_loop import Latencies, TooFewAnswersError
from tests.benchmarks.plan import SHORT, WHOLE, Level, Plan, every
from tests.benchmarks.registry import README_SYSTEMS, SYSTEMS


class _System:
    """Stands in for a system: nothing runs."""

    name, url, shape, batches = "bunch", "", None, True

    @contextlib.contextmanager
    def running(self, _model: str) -> Iterator[None]:
        yield


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rates that open loops were asked for, where closed loops give ten requests/s for each connection."""
    asked: list[float] = []

    def drive(_wrk: str, _url: str, _shape: Any, *, connections: int, payload_bytes: int, **_: Any) -> Load:
        rps = 0.0 if payload_bytes == 7 else 10.0 * connections / payload_bytes
        return Load(rps, 1, 1, 1, 10, 0, 0)

    def offer(_url: str, _shape: Any, *, rate: float, **_: Any) -> Latencies:
        asked.append(rate)
        if rate < 1:
            raise TooFewAnswersError("1 answers are too few to speak of latencies (0 failed)")
        return Latencies(rate, 10, 0, 1, 1, 1, 0)

    monkeypatch.setattr(module, "run_wrk", drive)
    monkeypatch.setattr(module, "open_loop", offer)
    monkeypatch.setattr(module, "verify_echo", lambda *_: None)
    monkeypatch.setattr(module, "_settle", lambda _: None)
    return asked


def _measure(plan: Plan, system: Any = None) -> module.Outcome:
    return measure(plan, [system or _System()], "wrk", lambda _: None)


def test_the_open_loop_has_half_of_the_most_that_a_closed_loop_of_its_payload_gave(rates: list[float]) -> None:
    outcome = _measure(Plan(every(["noop"], [10, 5], [64, 2]), 1, 1, 0))
    assert rates == [5 * 64 / 5, 5 * 64 / 10]
    assert [sample.payload_bytes for sample in outcome.open_samples] == [5, 10]
    assert not outcome.failures


def test_a_half_load_that_cannot_be_measured_is_named_and_ends_nothing(rates: list[float]) -> None:
    outcome = _measure(Plan(every(["noop"], [7, 100], [1]), 1, 1, 0))
    assert [(each.level.payload_bytes, each.why) for each in outcome.left] == [
        (7, "round 1: no closed loop before it had an answer"),
        (100, "round 1: 1 answers are too few to speak of latencies (0 failed)"),
    ]
    assert len(outcome.samples) == 2
    assert not outcome.failures


def test_a_system_that_does_not_batch_skips_the_slow_model_with_the_reason(rates: list[float]) -> None:
    system = _System()
    system.batches = False
    short = Plan(every(connections=[1], half_load=False), 2, 1, 0, with_slow=False)
    outcome = _measure(short, system)
    assert {sample.model for sample in outcome.samples} == {"noop"}
    assert {(each.level.model, each.why) for each in outcome.left} == {("50ms", ONE_BY_ONE)}
    assert outcome.gaps() == {("bunch", ONE_BY_ONE): [level.title for level in short.of("50ms")]}
    assert {sample.model for sample in _measure(Plan(every(connections=[1]), 1, 1, 0), system).samples} == {
        "noop",
        "50ms",
    }


def test_readmes_run_has_all_payloads_models_and_connections_and_takes_less_than_a_quarter_of_an_hour() -> None:
    plan = Plan(SHORT, 3, 3, 1, with_slow=False)
    for name in ("model", "payload_bytes", "connections"):
        assert {getattr(level, name) for level in SHORT} == {getattr(level, name) for level in WHOLE}
    assert plan.estimate_s([SYSTEMS[name].batches for name in README_SYSTEMS]) < 15 * 60


def test_every_payload_ends_with_its_half_load_and_the_crowd_comes_last() -> None:
    assert [(level.payload_bytes, level.connections) for level in Plan(SHORT, 1, 1, 1).of("noop")] == [
        *((60, connections) for connections in (1, 64, 256, None)),
        (2048, 256),
        (2048, None),
        (60, 1000),
    ]


def test_a_level_is_named_with_its_load() -> None:
    assert Level("noop", 2048, 1000).title == "noop, 2,048 bytes, 1,000 connections"
    assert Level("50ms", 60, None).title == "50ms, 60 bytes, half load"

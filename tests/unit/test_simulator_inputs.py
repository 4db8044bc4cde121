"""Arrivals come as often as they say, records are read as they stand, batches take what their table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batching.simulator import (
    Affine,
    Arrivals,
    Bursts,
    Diurnal,
    Measured,
    OnOff,
    Poisson,
    Recorded,
    Steps,
    read_trace,
)

DURATION_S = 1000.0


@pytest.mark.parametrize(
    ("process", "rps"),
    [
        (Poisson(50.0), 50.0),
        (Steps([(0.0, 20.0), (500.0, 80.0)]), 50.0),
        (Bursts(30.0, size=40, every_s=2.0), 50.0),
        (Diurnal(10.0, 90.0, period_s=100.0), 50.0),
        (OnOff(90.0, 10.0, on_s=1.0, off_s=1.0), 50.0),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_rate_is_kept_and_the_times_ascend(process: Arrivals, rps: float) -> None:
    times = process.times(DURATION_S, np.random.default_rng(1))
    assert len(times) / DURATION_S == pytest.approx(rps, rel=0.06)
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < DURATION_S


def test_gaps_of_independent_callers_vary_as_much_as_they_last() -> None:
    gaps = np.diff(Poisson(50.0).times(DURATION_S, np.random.default_rng(1)))
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.03)


def test_bursts_are_within_their_spread() -> None:
    times = Bursts(0.0, size=40, every_s=2.0, spread_s=0.01).times(10.0, np.random.default_rng(1))
    assert len(times) == 5 * 40
    assert (np.round(times // 2) == np.repeat(range(5), 40)).all()
    assert ((times - 1) % 2 <= 0.01).all()


def test_a_day_has_its_peak_in_its_first_half() -> None:
    times = Diurnal(10.0, 90.0, period_s=100.0).times(100.0, np.random.default_rng(1))
    assert (times < 50).sum() > 2 * (times >= 50).sum()


def test_records_are_read(tmp_path: Path) -> None:
    lines = tmp_path / "trace.jsonl"
    lines.write_text('{"at_ms": 1500, "tier": "free"}\n\n{"at_ms": 1000, "tier": "enterprise"}\n', encoding="utf-8")
    assert read_trace(lines) == Recorded([0.0, 0.5], [0, 2])
    table = tmp_path / "trace.csv"
    table.write_text("at_s\n3\n4.5\n", encoding="utf-8")
    assert read_trace(table) == Recorded([0.0, 1.5], None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"at_ms": 1}\n{"when": 2}\n', "record 2"),
        ('{"at_ms": 1, "tier": "gold"}\n', "record 1"),
        ("", "no arrivals"),
    ],
)
def test_a_record_that_is_not_right_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_trace(path)


def test_times_of_a_batch() -> None:
    assert Affine(0.02, 0.0005).seconds(64) == pytest.approx(0.052)
    table = Measured({1: 0.01, 9: 0.05, 32: 0.08})
    assert table.seconds(1) == 0.01
    assert table.seconds(5) == pytest.approx(0.03)
    assert table.seconds(9) == 0.05
    assert table.seconds(64) == pytest.approx(0.16)
    with pytest.raises(ValueError, match="sizes"):
        Measured({})

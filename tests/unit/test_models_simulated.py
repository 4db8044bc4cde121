from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.models import simulated
from workers.models.simulated import Simulated


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    naps: list[float] = []
    # Its name for the module, not the module: other threads sleep too.
    monkeypatch.setattr(simulated, "time", SimpleNamespace(sleep=naps.append))
    return naps


def test_a_batch_takes_its_base_and_each_items_share(slept: list[float]) -> None:
    model = Simulated(batch_ms=20, item_ms=0.5)
    model.load("cpu")
    assert model.predict(["a", "b", "c"], [{}] * 3) == ["a", "b", "c"]
    assert slept == [0.0, pytest.approx(0.0215)]


def test_loading_takes_its_time_too(slept: list[float]) -> None:
    Simulated(load_ms=1500).load("cpu")
    assert slept == [1.5]


def test_jitter_spreads_around_the_planned_time_and_can_be_repeated() -> None:
    def times(seed: int) -> list[float]:
        model = Simulated(batch_ms=100, item_ms=0, jitter=0.1, seed=seed)
        return [model.duration_s(1) for _ in range(200)]

    assert all(0.09 <= each <= 0.11 for each in times(1))
    assert min(times(1)) < 0.095
    assert max(times(1)) > 0.105
    assert times(1) == times(1) != times(2)


@pytest.mark.parametrize("options", [{"batch_ms": -1}, {"item_ms": -0.1}, {"load_ms": -1}, {"jitter": 1.5}])
def test_impossible_times_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Simulated(**options)  # type: ignore[arg-type]

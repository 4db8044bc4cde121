"""The time that a batch may compute, learnt from others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from config.schema import ModelSettings
from workers.executor.time_limit import LEAST_S, TimeLimit

FACTOR_OF_THREE = TimeLimit.of(ModelSettings(name="m", source="s", timeout_ms=30_000, timeout_factor=3))


def test_without_a_factor_the_fixed_time_holds_whatever_batches_take() -> None:
    limit = TimeLimit.of(ModelSettings(name="m", source="s", timeout_ms=3000)).computed(0.1)
    assert limit.seconds == 3.0
    assert str(limit) == "timeout_ms = 3000"


def test_before_the_first_batch_the_fixed_time_holds() -> None:
    assert FACTOR_OF_THREE.seconds == 30.0


def test_the_limit_follows_the_longest_batch_of_late() -> None:
    limit = FACTOR_OF_THREE.computed(1.0).computed(2.0).computed(0.5)
    assert 5.5 < limit.seconds <= 6.0
    assert "timeout_factor = 3 times" in str(limit)
    for _ in range(500):
        limit = limit.computed(0.5)
    assert limit.seconds == 1.5


def test_after_a_kill_only_the_fixed_time_holds_until_a_batch_is_through() -> None:
    slow = FACTOR_OF_THREE.computed(0.5).exceeded()
    assert slow.seconds == 30.0
    # It has become slower, and is known to be.
    assert slow.computed(8.0).seconds == 24.0


@given(times=st.lists(st.floats(0, 1000), max_size=30), factor=st.floats(1, 1000))
def test_it_is_never_longer_than_the_fixed_time_nor_shorter_than_a_second(times: list[float], factor: float) -> None:
    limit = TimeLimit(30.0, factor)
    for each in times:
        limit = limit.computed(each)
        assert LEAST_S <= limit.seconds <= 30.0
        # A batch as long as any of late is let through, where the fixed time lets it.
        assert limit.seconds >= min(30.0, each)

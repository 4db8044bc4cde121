"""The pause before a child is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cli.supervisor.backoff import Backoff


def test_doubles_up_to_its_limit() -> None:
    backoff = Backoff()
    assert [backoff.delay_s(n) for n in range(1, 8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


@given(st.integers(1, 10**9))
def test_never_leaves_its_bounds(failures: int) -> None:
    assert 0.5 <= Backoff().delay_s(failures) <= 10.0


def test_a_long_life_starts_over() -> None:
    backoff = Backoff()
    assert backoff.failures(7, lived_s=29.9) == 8
    assert backoff.failures(7, lived_s=30.0) == 1

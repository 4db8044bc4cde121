"""The formats in which bytes come in, for a moment each: `python -m tests.fuzz` does it for longer."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_right_is_read(name: str) -> None:
    assert [TARGETS[name].run(each) for each in TARGETS[name].seeds] == [True] * len(TARGETS[name].seeds)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(random=st.randoms(use_true_random=False))
def test_anything_is_read_rightly_or_refused(name: str, random: st.SearchStrategy) -> None:
    TARGETS[name].run(mutated(TARGETS[name].seeds, random.randint))


@pytest.mark.parametrize("name", TARGETS)
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(name: str, raw: bytes) -> None:
    TARGETS[name].run(raw)

"""The costs of a call and of a request in it, by the line through two sizes."""

from __future__ import annotations

import pytest

from tests.benchmarks.script_cost import SIZES, line, measure


def test_the_line_goes_through_both_measurements() -> None:
    found = line(small_us=100.0, large_us=163.0)
    assert found.request_us == pytest.approx(1.0)
    assert found.call_us == pytest.approx(99.0)
    for size, took_us in zip(SIZES, (100.0, 163.0), strict=True):
        assert found.call_us + size * found.request_us == pytest.approx(took_us)


def test_the_calls_of_a_request_on_its_way_are_measured() -> None:
    """On a real server, a few of each; that every claim brings what was queued is checked on the way."""
    found = measure(rounds=1, calls={1: 5, 64: 2})
    assert list(found) == ["submit", "look", "claim", "finish"]
    for lines in found.values():
        for each in lines:
            # The measurements that the line goes through. So few do not tell what a call costs without its requests: a
            # collection of garbage during the large ones would make that less than nothing.
            assert all(each.call_us + size * each.request_us > 0 for size in SIZES)

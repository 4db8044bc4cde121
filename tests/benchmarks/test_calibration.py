"""The calibration, from a closed loop's batches."""

from __future__ import annotations

import pytest

from tasks.observability.batch_log import BatchRecord, Member
from tests.benchmarks.calibration import returns, ways_back


def record(claimed_ms: int, enqueued_ms: range) -> BatchRecord:
    members = [Member(str(at), 1, 1, 0, claimed_ms - at) for at in enqueued_ms]
    return BatchRecord(id=str(claimed_ms), model="flat", claimed_ms=claimed_ms, turn_ms=50.0, members=members)


def test_the_ways_back_are_what_the_callers_of_each_batch_took() -> None:
    """Batches of 50 ms; the first of the next 64 is there 4, 4 and 10 ms after the end of one."""
    batches = [record(0, range(0)), *(record(at, range(at - 46, at + 18)) for at in (100, 200))]
    batches.append(record(300, range(260, 324)))
    came = returns(batches)
    assert [first for first, _ in came] == pytest.approx([0.004, 0.004, 0.01])
    ways = ways_back(came, in_s=0.0002, finish_s=0.0001)
    # One millisecond from each to the next, of which 0.2 are the way in.
    assert [apart for _, apart in ways] == pytest.approx([0.0008] * 3)
    # The usual first, and one that is 6 ms later: so much for each of 64.
    assert [first for first, _ in ways] == pytest.approx([0.0001, 0.0001, 0.0001 + 0.006 / 64])

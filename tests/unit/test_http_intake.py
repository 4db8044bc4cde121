"""The budget of requests that are still arriving: what has come counts, and who began first gives way."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.http.errors import CrowdedOutError
from webapp.http.intake import COUNTED, Intake
from webapp.http.sized import SizedBody


class Sender:
    def __init__(self) -> None:
        self.crowded = False

    def crowd_out(self) -> None:
        self.crowded = True


def test_who_began_first_gives_way() -> None:
    intake = Intake(10 * COUNTED)
    first, second, third = Sender(), Sender(), Sender()
    intake.hold(first, 4)
    intake.hold(second, 4)
    intake.hold(first, 5)
    intake.hold(third, 5)
    assert (first.crowded, second.crowded, third.crowded) == (True, False, False)
    assert intake.total == 9 * COUNTED


def test_who_is_alone_too_large_gives_way_itself() -> None:
    intake = Intake(10 * COUNTED)
    sender = Sender()
    with pytest.raises(CrowdedOutError):
        intake.hold(sender, 11)
    assert intake.total == 0


def test_what_is_whole_counts_no_more() -> None:
    intake = Intake(10 * COUNTED)
    first, second = Sender(), Sender()
    intake.hold(first, 8)
    intake.release(first)
    intake.release(first)
    intake.hold(second, 8)
    assert not first.crowded
    assert intake.total == 8 * COUNTED


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40))))
def test_never_more_than_the_budget_and_never_a_wrong_sum(steps: list[tuple[int, int]]) -> None:
    intake = Intake(100 * COUNTED)
    senders = [Sender() for _ in range(6)]
    held: dict[int, int] = {}
    for number, size in steps:
        held[number] = size
        try:
            intake.hold(senders[number], size)
        except CrowdedOutError:
            del held[number]
        for each, sender in enumerate(senders):
            if sender.crowded:
                del held[each]
                sender.crowded = False
        assert intake.total == COUNTED * sum(held.values())
        assert intake.total <= 100 * COUNTED


@given(st.binary(max_size=50), st.binary(max_size=10), st.lists(st.integers(0, 60), max_size=5))
def test_a_sized_body_however_it_comes(body: bytes, behind: bytes, cuts: list[int]) -> None:
    arriving = SizedBody(len(body))
    data = body + behind
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    rest = None
    for start, end in itertools.pairwise(edges):
        rest = arriving.feed(data[start:end])
        if rest is not None:
            assert (arriving.body, rest + data[end:]) == (body, behind)
            return
    assert rest is not None or body

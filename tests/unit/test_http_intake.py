"""The budget of requests that are still arriving: what has come counts, and who began first gives way."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.native import hot_path
from webapp.http import sized
from webapp.http.errors import CrowdedOutError
from webapp.http.intake import COUNTED, Intake
from webapp.http.sized import SizedBody

COMPILED = pytest.mark.skipif(hot_path is None, reason="SKIPPED: the hot path was not compiled here; make says why")


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


def test_what_has_its_own_memory_counts_once() -> None:
    intake = Intake(10)
    first, second = Sender(), Sender()
    intake.hold(first, 6, in_place=True)
    intake.hold(second, 4, in_place=True)
    assert (intake.total, first.crowded) == (10, False)
    intake.hold(second, 1)
    assert intake.total == 8
    intake.hold(second, 3)
    assert (intake.total, first.crowded) == (6, True)


@COMPILED
@pytest.mark.parametrize(("size", "in_place"), [(sized.IN_PLACE_BYTES - 1, False), (sized.IN_PLACE_BYTES, True)])
def test_a_large_body_has_its_own_memory(size: int, in_place: bool) -> None:
    assert SizedBody(size).in_place is in_place


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


@COMPILED
@given(
    st.binary(min_size=1, max_size=5000), st.binary(max_size=10), st.lists(st.integers(1, 2000)), st.integers(0, 3000)
)
def test_a_large_body_is_received_where_it_stays(body: bytes, behind: bytes, sizes: list[int], fed: int) -> None:
    """Bytes that have come with the head are fed, the rest is written into its room."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sized, "IN_PLACE_BYTES", 1)
        arriving = SizedBody(len(body))
    data = body + behind
    rest = arriving.feed(data[:fed])
    at = min(fed, len(body))
    for size in itertools.chain(sizes, itertools.repeat(1000)):
        if rest is not None:
            break
        assert (arriving.held_bytes, arriving.missing) == (at, len(body) - at)
        room = arriving.room(size)
        assert room is not None
        assert 0 < len(room) == min(size, arriving.missing)
        room[:] = body[at : at + len(room)]
        rest = arriving.filled(len(room))
        at += len(room)
    assert (arriving.body, rest) == (body, data[:fed][len(body) :])
    with pytest.raises(ValueError, match="released"):
        arriving.room(1)


def test_a_small_body_has_no_room() -> None:
    assert SizedBody(sized.IN_PLACE_BYTES - 1).room(1) is None

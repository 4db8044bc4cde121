"""Sharing a listener: whoever holds clearly more connections lets the others go first."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from webapp.http import accept_balance as board_module
from webapp.http.accept_balance import AcceptBalance


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(board_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.usefixtures("clock")
class TestBoard:
    def test_alone_it_takes_all(self) -> None:
        seat = AcceptBalance().seat(1)
        seat.beat()
        seat.publish(1000)
        assert seat.may_take()

    def test_more_than_another_waits_and_the_other_does_not(self) -> None:
        board = AcceptBalance()
        busy, idle = board.seat(1), board.seat(2)
        for seat in (busy, idle, busy):
            seat.beat()
        busy.publish(20)
        idle.publish(10)
        assert not busy.may_take()
        assert idle.may_take()

    @pytest.mark.parametrize(("own", "other"), [(0, 0), (1, 0), (2, 0), (90, 80), (1125, 1000)])
    def test_a_small_difference_does_not_matter(self, own: int, other: int) -> None:
        board = AcceptBalance()
        seats = board.seat(1), board.seat(2)
        for seat, connections in zip(seats, (own, other), strict=True):
            seat.beat()
            seat.publish(connections)
        seats[0].beat()
        assert seats[0].may_take()

    def test_one_that_left_is_not_waited_for(self) -> None:
        board = AcceptBalance()
        busy, gone = board.seat(1), board.seat(2)
        busy.publish(20)
        gone.beat()
        busy.beat()
        assert not busy.may_take()
        gone.leave()
        busy.beat()
        assert busy.may_take()

    def test_nor_is_one_that_stopped_beating(self, clock: list[float]) -> None:
        board = AcceptBalance()
        busy, dead = board.seat(1), board.seat(2)
        busy.publish(20)
        dead.beat()
        clock[0] += 10
        busy.beat()
        assert busy.may_take()

    def test_any_number_of_workers_has_a_seat(self) -> None:
        board = AcceptBalance()
        for number in range(1000):
            seat = board.seat(number)
            seat.beat()
            seat.publish(number)

"""The state that the worker's loop and the simulator share: what a policy sees, and what a claim and a wait come to."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.claim.loop_state import (
    FIRST_TRY_S,
    LOOK_EVERY_S,
    TICK_S,
    TOO_SHORT_FOR_BELLS_S,
    LoopState,
    Until,
    Waiting,
)
from batching.policy import Decision, Dispatch, QueueView, Reason, Wait

SECONDS = st.floats(0.0, 100.0)
SIZES = st.integers(1, 64)
NOTHING = Waiting(0, -math.inf, math.inf)


class Witness:
    """A policy that keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[QueueView] = []

    def decide(self, queue: QueueView, now: float) -> Decision:
        self.shown.append(queue)
        return Wait()


def shown(state: LoopState[Any], now: float, queue: Waiting | None = NOTHING, idle: int = 0) -> QueueView:
    """The view of the policy now."""
    state.learner.policy = witness = Witness()
    state.decide(queue, now, idle)
    return witness.shown[0]


def new() -> LoopState[str]:
    return LoopState(Witness())


def claim(state: LoopState[str], batch: str, now: float, size: int = 4, left: int = 0) -> None:
    state.asks(now)
    state.claimed(batch, size, left, 0.0, 0.0, now)


def test_the_policy_knows_the_time_of_reading() -> None:
    state = new()
    assert shown(state, 1.0).read_s == 0.0
    state.has_read(0.2)
    assert shown(state, 1.0).read_s == 0.2
    for _ in range(100):
        state.has_read(0.0)
    assert shown(state, 1.0).read_s < 0.001


def test_nobody_has_looked_and_somebody_has() -> None:
    blind = shown(new(), 5.0, None)
    assert (blind.depth, blind.oldest_at, blind.due_at) == (None, 5.0, math.inf)
    seen = shown(new(), 5.0, Waiting(3, 4.0, 9.0), idle=2)
    assert (seen.depth, seen.oldest_at, seen.due_at, seen.idle) == (3, 4.0, 9.0, 2)


@given(
    st.lists(st.tuples(SECONDS, st.sampled_from(["claim", "finish", "lose"]), SIZES), max_size=40),
    st.floats(0.0, 1000.0),
)
def test_batches_are_computed_one_after_another_in_the_order_of_their_claims(
    steps: list[tuple[float, str, int]], began: float
) -> None:
    state = LoopState[int](Witness(), began)
    now = free_since = began
    in_hand: list[tuple[int, int]] = []
    sizes = [0, 0]
    spent_s = 0.0
    for number, (pause_s, step, size) in enumerate(steps):
        now += pause_s
        if step == "claim" and len(in_hand) < 2:
            if not in_hand:
                free_since = now
            in_hand.append((number, size))
            sizes = [sizes[1], size]
            state.asks(now)
            state.claimed(number, size, 0, 0.0, 0.0, now)
        elif in_hand:
            batch, its_size = in_hand.pop(0)
            if step == "lose":
                state.lost(batch, now)
            else:
                turn_s = state.finished(batch, its_size, now)
                assert turn_s == now - free_since, "it came to the front when the one before it had left"
                spent_s += turn_s
            free_since = now
        view = shown(state, now)
        assert (list(state.in_hand), view.in_hand) == ([each for each, _ in in_hand], len(in_hand))
        assert view.recent == max(sizes)
        assert view.free_at == free_since + (view.batch_s if in_hand else 0.0)
    assert spent_s <= (now - began) * (1 + 1e-9)


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=20))
def test_the_time_of_a_batch_is_between_the_shortest_and_the_longest_one(turns: list[float]) -> None:
    state, now = new(), 0.0
    for turn_s in turns:
        claim(state, "b", now)
        now += turn_s
        state.finished("b", 4, now)
    assert min(turns) * (1 - 1e-6) <= state.batch_s <= max(turns) * (1 + 1e-6)


@given(st.integers(1, 1000), st.integers(1, 1000), st.none() | st.integers(1, 1000))
def test_a_claim_is_no_larger_than_asked_than_permitted_and_than_memory_has_room_for(
    size: int, permitted: int, safe_size: int | None
) -> None:
    state = new()
    if safe_size is not None:
        state.ran_out(safe_size, 2 * safe_size, 0.0)
    claimed = state.limited(Dispatch(size, Reason.DELAY, 0.5), permitted)
    assert claimed == Dispatch(min(size, permitted, safe_size or size), Reason.DELAY, 0.5)


def test_what_memory_has_room_for_only_shrinks() -> None:
    state = new()
    assert [state.ran_out(each, 16, 0.0) for each in (8, 16, 2)] == [8, 8, 2]
    assert state.safe_size == 2


def grown(state: LoopState[str], now: float) -> list[int | None]:
    """The sizes that are allowed after each full batch, as long as they grow."""
    sizes: list[int | None] = []
    while state.safe_size is not None and state.had_room(state.safe_size, now):
        sizes.append(state.safe_size)
    return sizes


def test_what_memory_has_room_for_grows_again_after_a_while_up_to_whole_batches() -> None:
    state = new()
    state.ran_out(1, 16, 10.0)
    assert grown(state, 10.0 + FIRST_TRY_S - 1) == []
    assert grown(state, 10.0 + FIRST_TRY_S) == [2, 4, 8, None]
    assert state.safe_size is None


def test_only_a_batch_of_the_full_size_shows_that_memory_has_room() -> None:
    state = new()
    state.ran_out(4, 16, 0.0)
    assert not state.had_room(3, 10 * FIRST_TRY_S)
    assert state.safe_size == 4


def test_each_size_that_fails_again_is_tried_after_twice_the_time_until_one_succeeds() -> None:
    state = new()
    now, waits = 0.0, []
    for _ in range(9):
        state.ran_out(2, 16, now)
        # Claimed before the failure was known, and of the same size.
        state.ran_out(2, 16, now)
        wait_s = FIRST_TRY_S
        while not state.had_room(2, now + wait_s):
            wait_s += FIRST_TRY_S
        now += wait_s
        waits.append(wait_s / FIRST_TRY_S)
        assert state.safe_size == 4
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert state.had_room(4, now)
    state.ran_out(4, 8, now)
    assert not state.had_room(4, now + FIRST_TRY_S - 1)
    assert state.had_room(4, now + FIRST_TRY_S)


@given(st.floats(-10.0, 10.0) | st.just(math.inf), st.floats(0.0, 1e6), st.booleans())
def test_a_pause_ends_with_the_policys_wait_and_before_at_a_tick_or_a_look(
    left_s: float, now: float, in_hand: bool
) -> None:
    state = new()
    if in_hand:
        claim(state, "b", now)
    until = now + left_s
    pause = state.pause(Wait(until), now)
    left_s = until - now
    if in_hand:
        assert pause.ends is Until.EXECUTOR
        assert pause.at == now + min(max(0.0, left_s), TICK_S)
    elif left_s <= TOO_SHORT_FOR_BELLS_S:
        # Not even a bell ends it: each ring would cost a look.
        assert pause == (Until.MOMENT, max(now, until))
    else:
        assert pause == (Until.BELL, now + min(left_s, LOOK_EVERY_S))


def test_whom_the_breaker_refuses_waits_for_the_executor_if_it_has_something_in_hand() -> None:
    state = new()
    assert state.refused(1.0) == (Until.MOMENT, 1.0 + TICK_S)
    claim(state, "b", 1.0)
    assert state.refused(1.0) == (Until.EXECUTOR, 1.0 + TICK_S)


@pytest.mark.parametrize("rest", ["nothing waits", "a wait", "a refusal", "a pause", "a death", "an empty claim"])
def test_a_row_of_batches_ends_with_a_rest_which_counts_for_nobodys_pace(rest: str) -> None:
    """A claim takes a second, and so does its batch: two seconds in a row of them, whatever comes between the rows."""
    state, now = new(), 0.0
    for _ in range(5):
        for more in (1, 0 if rest == "nothing waits" else 1):
            state.asks(now)
            state.claimed("b", 4, more, 0.0, 0.0, now + 1)
            state.finished("b", 4, now + 2)
            now += 2
        match rest:
            case "a wait":
                state.pause(Wait(), now)
            case "a refusal":
                state.refused(now)
            case "a pause":
                state.rests()
            case "a death":
                state.claimed("d", 4, 1, 0.0, 0.0, now)
                state.lost("d", now + 1)
            case "an empty claim":
                state.found_nothing(0, now)
        now += 100
    assert state.pace.known
    assert state.pace.seconds(4) == pytest.approx(2.0)


def test_while_more_waits_the_time_between_two_batches_is_part_of_their_pace() -> None:
    state, now = new(), 0.0
    for _ in range(5):
        claim(state, "b", now + 2, left=9)
        state.finished("b", 4, now + 3)
        now += 3
    assert state.pace.seconds(4) == pytest.approx(3.0)


@pytest.mark.parametrize("about", [{"passes": 3}, {"ok": False}])
def test_a_batch_that_was_searched_for_a_culprit_or_failed_says_nothing_of_the_models_time(about: Any) -> None:
    state = new()
    claim(state, "b", 0.0)
    assert state.finished("b", 4, 5.0, **about) == 5.0
    assert not shown(state, 5.0).learnt.time.known
    claim(state, "b", 5.0)
    state.finished("b", 4, 7.0)
    assert shown(state, 7.0).learnt.time.known


def test_a_claim_that_finds_nothing_is_a_look_too() -> None:
    busy = new()
    for tenth in range(1, 30):
        busy.looked(tenth * 10, tenth / 10)
    rate = shown(busy, 3.0).learnt.rate
    busy.asks(8.0)
    busy.found_nothing(290, 8.0)
    assert shown(busy, 8.0).learnt.rate < rate / 10

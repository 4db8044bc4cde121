"""Breaker, retries and suspects: the rules that decide what a failure costs, and whom."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from batching.policy import Breaker, BreakerState, RetryPolicy, suspect_sizes


def opened(failures: int = 3, open_s: float = 1.0) -> Breaker:
    breaker = Breaker(failures=failures, open_s=open_s, probe_size=2)
    for _ in range(failures):
        breaker.record(0.0, ok=False)
    return breaker


def test_a_breaker_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(failures=3)
    for ok in (False, False, True, False, False):
        breaker.record(0.0, ok=ok)
    assert breaker.state is BreakerState.CLOSED
    breaker.record(0.0, ok=False)
    assert breaker.state is BreakerState.OPEN
    assert breaker.permits(0.5) == 0


def test_an_open_breaker_probes_with_one_small_batch_at_a_time() -> None:
    breaker = opened()
    assert breaker.take(1.0) == 2
    assert (breaker.permits(1.1), breaker.take(1.1)) == (0, 0)
    breaker.record(1.2, ok=True)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.permits(1.3) > 1000


def test_each_failed_probe_doubles_the_pause_up_to_a_bound() -> None:
    breaker = Breaker(failures=1, open_s=1.0, max_open_s=4.0)
    breaker.record(0.0, ok=False)
    now, pauses = 0.0, []
    for _ in range(5):
        start = now
        while not breaker.take(now):
            now += 0.5
        pauses.append(now - start)
        breaker.record(now, ok=False)
    assert pauses == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_probe_that_was_not_taken_is_there_until_it_is() -> None:
    breaker = opened()
    assert [breaker.permits(now) for now in (1.0, 1.1, 9.0)] == [2, 2, 2]
    assert breaker.take(9.0) == 2
    breaker.found_nothing()
    assert breaker.take(9.1) == 2


def test_a_probe_of_which_nothing_is_heard_does_not_block_the_next() -> None:
    breaker = opened()
    assert breaker.take(1.0)
    assert not breaker.take(1.9)
    assert breaker.take(2.0)


def test_an_operator_can_close_it() -> None:
    breaker = opened()
    breaker.reset()
    assert breaker.permits(0.1) > 1000


@given(st.integers(1, 90), st.integers(1, 100), st.floats(0, 0.999), st.floats(0, 100) | st.just(math.inf))
def test_a_retry_is_bounded_by_attempts_cap_and_deadline(
    max_attempts: int, attempt: int, jitter: float, left_s: float
) -> None:
    policy = RetryPolicy(max_attempts)
    pause = policy.pause(attempt, left_s, jitter)
    if attempt >= max_attempts:
        assert pause is None
    elif pause is not None:
        assert 0 <= pause <= policy.cap_s
        assert pause < left_s
        assert pause <= policy.base_s * 2 ** (attempt - 1)


def test_pauses_grow_with_full_jitter() -> None:
    policy = RetryPolicy(10, base_s=0.1, cap_s=1.0)
    assert [policy.pause(n, math.inf, 0.5) for n in (1, 2, 3, 4, 5, 6)] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert policy.pause(3, math.inf, 0.0) == 0.0


def test_no_time_left_means_no_retry() -> None:
    assert RetryPolicy(5).pause(1, 0.0, 0.9) is None


def test_suspects_are_given_up_after_their_attempts_and_innocents_of_dead_workers_are_not() -> None:
    policy = RetryPolicy(3)
    assert not policy.exhausted(attempt=3, lost=2)
    assert policy.exhausted(attempt=4, lost=3)
    assert not policy.exhausted(attempt=4, lost=0)
    # With one attempt there is still one more, alone: otherwise neighbours would fail for the culprit.
    assert not RetryPolicy(1).exhausted(attempt=2, lost=1)
    assert RetryPolicy(1).exhausted(attempt=3, lost=2)


def test_other_attempts_do_not_count_against_a_suspect_that_never_had_its_turn_alone() -> None:
    # Twice a network, then lost among others, as late as it can be.
    assert not RetryPolicy(3).exhausted(attempt=4, lost=1)
    assert not RetryPolicy(3).exhausted(attempt=5, lost=2)
    assert RetryPolicy(3).exhausted(attempt=6, lost=3)


@given(st.integers(1, 90))
def test_whoever_is_lost_each_time_is_given_up_in_the_end(max_attempts: int) -> None:
    """The stamp counts losses up to nine."""
    policy = RetryPolicy(max_attempts)
    given_up = next(n for n in range(1, 100) if policy.exhausted(attempt=n + 1, lost=min(n, 9)))
    assert given_up == max(2, max_attempts)


@given(st.integers(1, 512), st.integers(1, 20))
def test_suspect_batches_shrink_to_one(size: int, max_attempts: int) -> None:
    sizes = suspect_sizes(size, max_attempts)
    assert sizes[-1] == 1
    assert list(sizes) == sorted(sizes, reverse=True)
    assert all(1 <= each <= size for each in sizes)
    assert len(sizes) == max(1, max_attempts - 1)


def test_the_usual_case() -> None:
    assert suspect_sizes(64, 3) == (8, 1)

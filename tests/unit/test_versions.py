"""Owners are divided among the versions of a model: sticky, exact, and moved one way only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.client.versions import WHOLE, Division, digest, divide, hashed_position, position

OWN, NEW, OTHER = "m", "m@2", "m@3"

hundredths = st.integers(0, WHOLE)
per_cent = hundredths.map(lambda each: each / 100)


def versions(weights: dict[str, float], owners: int, first: int = 0) -> list[str]:
    division = divide(OWN, weights)
    assert division is not None
    return [division.at(position(number)) for number in range(first, first + owners)]


def test_ten_thousand_owners_in_a_row_have_all_positions() -> None:
    assert sorted(map(position, range(7, WHOLE + 7))) == list(range(WHOLE))


@given(weight=st.integers(1, 100), first=st.integers(0, 20_000))
def test_of_any_hundred_owners_in_a_row_so_many_are_on_the_new_version(weight: int, first: int) -> None:
    assert versions({NEW: weight}, 100, first).count(NEW) == weight


@given(weight=st.integers(1, 99), owners=st.integers(1, 2000))
def test_at_any_number_of_owners_the_share_is_less_than_two_owners_from_its_weight(weight: int, owners: int) -> None:
    for found in (versions({NEW: weight}, owners).count(NEW), versions({OTHER: 0, NEW: weight}, owners).count(NEW)):
        assert abs(found - weight * owners / 100) < 2


def test_five_per_cent_of_two_hundred_owners_are_ten() -> None:
    assert versions({NEW: 5}, 200).count(NEW) == 10


@pytest.mark.parametrize(("weight", "version"), [(51, OWN), (52, NEW)])
def test_a_single_owner_moves_when_most_of_the_weight_does(weight: float, version: str) -> None:
    assert versions({NEW: weight}, 1) == [version]


@given(before=per_cent, after=per_cent, fixed=per_cent)
def test_a_changed_weight_moves_owners_between_that_version_and_the_models_own_only(
    before: float, after: float, fixed: float
) -> None:
    room = 100 - fixed
    small, large = sorted((before * room / 100, after * room / 100))
    for order in ((NEW, OTHER), (OTHER, NEW)):
        parts = [divide(OWN, {each: weight if each == NEW else fixed for each in order}) for weight in (small, large)]
        for at in range(0, WHOLE, 7):
            was, is_now = [OWN if part is None else part.at(at) for part in parts]
            assert was == is_now or (was, is_now) == (OWN, NEW)


@given(weights=st.lists(hundredths, min_size=1, max_size=6))
def test_every_version_gets_its_weight_and_the_models_own_the_rest(weights: list[int]) -> None:
    total = max(sum(weights), WHOLE)
    parts = [each * WHOLE // total for each in weights]
    division = divide(OWN, {f"m@{number}": part / 100 for number, part in enumerate(parts)})
    if not any(parts):
        assert division is None
        return
    assert division is not None
    found = [division.at(at) for at in range(WHOLE)]
    assert [found.count(f"m@{number}") for number in range(len(parts))] == parts
    assert found.count(OWN) == WHOLE - sum(parts)
    assert set(division.served) == set(found)


@given(weights=st.lists(per_cent, min_size=1, max_size=5))
def test_weights_that_are_too_much_together_still_give_every_owner_a_version(weights: list[float]) -> None:
    division = divide(OWN, {f"m@{number}": weight for number, weight in enumerate(weights)})
    for at in (0, 1, WHOLE // 2, WHOLE - 1):
        assert division is None or division.at(at) in division.names


def test_without_a_weight_nothing_is_divided() -> None:
    assert divide(OWN, {NEW: 0, OTHER: 0.0}) is None
    assert divide(OWN, {}) is None


def test_a_version_with_the_whole_weight_leaves_nothing_to_the_models_own() -> None:
    whole = divide(OWN, {NEW: 100})
    assert whole == Division((WHOLE,), (NEW, OWN))
    assert whole.served == (NEW,)
    assert {whole.at(at) for at in range(WHOLE)} == {NEW}


def test_a_hash_is_the_same_in_every_process_and_spread_over_all_positions() -> None:
    assert (digest("acme"), hashed_position("0000000000002711")) == ("302657b33c4da281", 1)
    found = [hashed_position(digest(f"owner {number}")) for number in range(20_000)]
    assert max(found) > 0.99 * WHOLE
    assert 0.045 < sum(each < 500 for each in found) / len(found) < 0.055

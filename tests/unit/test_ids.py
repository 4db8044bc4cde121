"""Task ids that know whose they are."""

from __future__ import annotations

import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.protocol.ids import _make_ids, belongs_to, new_id, owned_id

_owners = st.text(st.characters(codec="latin-1"), min_size=1, max_size=64)


@given(_owners)
def test_an_id_belongs_to_its_owner(owner: str) -> None:
    task_id = owned_id(new_id(), owner)
    assert belongs_to(task_id, owner)
    assert belongs_to(task_id, "")


@given(_owners, _owners)
def test_and_to_nobody_else(owner: str, other: str) -> None:
    assert belongs_to(owned_id(new_id(), owner), other) == (owner == other)


@given(st.text(), _owners)
def test_whatever_is_asked_for_is_somebody_elses(anything: str, owner: str) -> None:
    assert not belongs_to(anything, owner)


def test_it_still_looks_like_any_other_and_is_one_of_its_kind() -> None:
    ids = [owned_id(new_id(), "acme") for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {len(each) for each in ids} == {len(new_id())}
    assert {each.count("-") for each in ids} == {4}


def test_what_is_before_the_hash_is_part_of_it() -> None:
    task_id = owned_id(new_id(), "acme")
    assert not belongs_to(new_id()[:-10] + task_id[-10:], "acme")


@pytest.mark.parametrize("owner", ["", "acme"])
def test_ids_are_uuids_that_begin_with_their_time(monkeypatch: pytest.MonkeyPatch, owner: str) -> None:
    beginnings = []
    for seconds in (1_795_000_000, 1_795_000_003, 1_795_000_004, 1_795_000_000 + (4 << 20)):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: float(seconds))
        made = next(_make_ids())
        task_id = owned_id(made, owner) if owner else made
        assert uuid.UUID(task_id).version == 8
        assert str(uuid.UUID(task_id)) == task_id
        beginnings.append(int(task_id[:5], 16))
    assert [each - beginnings[0] for each in beginnings] == [0, 0, 1, 0]

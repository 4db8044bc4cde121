"""The cores of the load generator, and the descriptors of everybody."""

from __future__ import annotations

import os
import resource

import pytest

from tests.benchmarks import cores
from tests.benchmarks.cores import split, too_many


@pytest.mark.parametrize("count", [1, 2])
def test_two_cores_are_shared_with_the_client(count: int) -> None:
    assert split(range(count)) == cores.Cores(tuple(range(count)), tuple(range(count)))
    assert not split(range(count)).pinned


@pytest.mark.parametrize(("count", "clients"), [(3, 1), (4, 1), (7, 1), (8, 2), (16, 4), (64, 8)])
def test_on_more_cores_the_client_has_a_quarter_of_its_own(count: int, clients: int) -> None:
    found = split(range(count))
    assert found.pinned
    assert len(found.client) == clients
    assert sorted(found.system + found.client) == list(range(count))


def test_only_cores_that_this_process_may_use_are_given_out() -> None:
    assert split([9, 4, 6]) == cores.Cores((4, 6), (9,))


def test_what_starts_on_other_cores_leaves_this_thread_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    with cores.on([one]):
        assert os.sched_getaffinity(0) == {one}
    assert os.sched_getaffinity(0) == before


def test_connections_need_descriptors_in_each_process() -> None:
    why = too_many(1000, 1024)
    assert why is not None
    assert "1,000 connections need 1,300 file descriptors" in why
    assert "`ulimit -Hn` is 1,024" in why
    assert too_many(1000, 1300) is None
    assert too_many(1000, resource.RLIM_INFINITY) is None

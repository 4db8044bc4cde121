"""Shards: which one a request is in, and what its id tells of it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.keys import Shard
from config.redis import connect
from config.settings import ModelSettings, Settings, load_settings
from config.shards import Places, only_home, open_places
from config.tiers import Tier
from tasks.client.admission_args import AdmissionArgs
from tasks.protocol.ids import belongs_to, made_at_ms, new_id, owned_id, shard_of, sharded_id

REDIS = connect("redis://127.0.0.1:1")


def places(count: int) -> Places:
    return open_places(load_settings({"BUNCH_SHARDS": str(count)}), REDIS)


def test_one_shard_is_the_home() -> None:
    one = places(1)
    assert list(one) == [one.home] == list(only_home(REDIS))
    assert one.home.keys.tag == ""
    assert one.for_owner("acme") is one.numbered(None) is one.numbered(0) is one.home


def test_plain_celery_clients_have_a_place_beside_the_shards() -> None:
    four = places(4)
    assert [each.keys.tag for each in four] == ["{s0}", "{s1}", "{s2}", "{s3}", ""]
    assert [each.number for each in four] == [0, 1, 2, 3, None]
    assert four.by_server() == [list(four)]


@pytest.mark.parametrize("count", [4, 16])
def test_owners_spread_evenly_and_stay(count: int) -> None:
    owners = [f"owner-{number}" for number in range(4000)]
    found = Counter(places(count).for_owner(each).number for each in owners)
    assert min(found.values()) > 0.75 * 4000 / count
    assert max(found.values()) < 1.25 * 4000 / count
    assert [places(count).for_owner(each).number for each in owners[:50]] == [
        places(count).for_owner(each).number for each in owners[:50]
    ]


def test_with_one_shard_more_only_the_owners_that_it_gets_move() -> None:
    four, five = places(4), places(5)
    for number in range(500):
        before, after = (each.for_owner(f"owner-{number}").number for each in (four, five))
        assert after in {before, 4}


@given(number=st.integers(0, 255), owner=st.text(max_size=20))
def test_an_id_tells_its_shard_and_its_owner(number: int, owner: str) -> None:
    task_id = owned_id(sharded_id(new_id(), number), owner) if owner else sharded_id(new_id(), number)
    assert shard_of(task_id) == number
    assert belongs_to(task_id, owner)
    assert made_at_ms(task_id, 0) is not None


@given(st.uuids(version=4))
def test_an_id_of_another_maker_tells_no_shard(theirs: object) -> None:
    assert shard_of(str(theirs)) is None
    assert shard_of(new_id()) is None


def test_a_shard_that_is_not_there_is_looked_for_at_home() -> None:
    four = places(4)
    assert four.numbered(4) is four.numbered(None) is four.home
    assert four.numbered(3).keys.tag == "{s3}"


@pytest.mark.parametrize(("admission", "expected"), [("depth", [-1, 250, 13]), ("drain", [-1, 1500, 500])])
def test_thresholds_as_numbers_of_requests_are_shared_out_over_the_shards(admission: str, expected: list[int]) -> None:
    model = ModelSettings(name="m", source="not:asked")
    settings = Settings(
        models={"m": model}, shards=4, admission=admission, shed_paid_depth=1000, shed_free_depth=50,
        shed_paid_ms=1500, shed_free_ms=500,
    )  # fmt: skip
    args = AdmissionArgs(settings, Shard("{s1}"))
    assert [args._ranks[queue][1] for queue in Shard("{s1}").queues("m")] == expected
    home = AdmissionArgs(settings, Shard())
    assert home._ranks[Shard().queue("m", Tier.FREE)][1] == (50 if admission == "depth" else 500)

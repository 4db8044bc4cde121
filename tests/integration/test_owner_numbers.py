"""Owners of a model get numbers that all frontends agree on, and keep them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from config.keys import Shard
from config.redis import connect
from config.settings import ModelSettings, Settings
from config.tiers import Tier
from tasks.client.owner_numbers import KEPT_S, OwnerNumbers
from tasks.client.versions import digest, hashed_position, position
from tasks.fleet.desired_state import DesiredState
from tasks.protocol.caller import Caller
from webapp.model_versions import ModelVersions
from webapp.request import HttpRequest

KEYS = Shard()
OWNERS = [f"owner-{number}" for number in range(200)]
MODELS = {
    name: ModelSettings(name=name, source="a:B", version=name.partition("@")[2] or "1") for name in ("m", "m@2", "n")
}
SETTINGS = Settings(models=MODELS, default_model="m")


def numbered(redis: Redis) -> dict[bytes, bytes]:
    return redis.hgetall(KEYS.owners("m"))  # type: ignore[return-value]


def calls(redis: Redis) -> int:
    """The number of commands that the server has run by now, this one too."""
    return int(redis.info("stats")["total_commands_processed"])  # type: ignore[index]


def asked_by(owner: str = "", **headers: str) -> HttpRequest:
    call = HttpRequest({"REQUEST_METHOD": "POST", "PATH_INFO": "/", "wsgi.input": BytesIO(), **headers})
    call.caller = Caller("key", owner, Tier.PAID)
    return call


@pytest.fixture
def frontends(redis: Redis) -> Iterator[list[ModelVersions]]:
    """Three frontends that share nothing but Redis."""
    DesiredState(redis).tune(MODELS["m@2"], {"weight": 5})
    made = [ModelVersions(SETTINGS, redis) for _ in range(3)]
    for each in made:
        each.start()
    return made  # type: ignore[return-value]


def of_each(versions: ModelVersions) -> dict[str, str]:
    return {owner: versions.route("m", asked_by(owner)) for owner in OWNERS}


def test_owners_are_numbered_in_the_order_in_which_they_come_and_the_second_time_without_a_round_trip(
    redis: Redis,
) -> None:
    numbers = OwnerNumbers(redis)
    assert [numbers.position("m", owner) for owner in OWNERS] == [position(number) for number in range(200)]
    before = calls(redis)
    assert numbers.position("m", OWNERS[7]) == position(7)
    assert calls(redis) == before + 1
    # Another model has an order of its own.
    assert numbers.position("n", OWNERS[7]) == position(0)
    assert 0 < redis.ttl(KEYS.owners("m")) <= KEPT_S


def test_frontends_that_ask_at_the_same_time_agree_and_leave_no_number_out(redis: Redis) -> None:
    frontends = [OwnerNumbers(redis) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        orders = (OWNERS, OWNERS[::-1], OWNERS[100:] + OWNERS[:100], OWNERS)
        list(pool.map(lambda each: [each[0].position("m", owner) for owner in each[1]], zip(frontends, orders)))  # noqa: B905
    found = [{owner: each.position("m", owner) for owner in OWNERS} for each in frontends]
    assert found[0] == found[1] == found[2] == found[3]
    assert sorted(map(int, numbered(redis).values())) == list(range(200))


def test_beyond_the_most_owners_a_hash_decides_without_asking(redis: Redis) -> None:
    for owner in OWNERS[:5]:
        OwnerNumbers(redis, most=5).position("m", owner)
    late = OwnerNumbers(redis, most=5)
    assert late.position("m", "another") == hashed_position(digest("another"))
    before = calls(redis)
    assert late.position("m", "one more") == hashed_position(digest("one more"))
    assert [late.position("m", owner) for owner in OWNERS[:5]] == [position(number) for number in range(5)]
    assert calls(redis) == before + 1
    assert len(numbered(redis)) == 5


def test_a_frontend_that_starts_later_reads_all_numbers_at_once(redis: Redis) -> None:
    early = OwnerNumbers(redis)
    before = {owner: early.position("m", owner) for owner in OWNERS}
    redis.expire(KEYS.owners("m"), 60)
    late = OwnerNumbers(redis)
    late.keep("m")
    assert redis.ttl(KEYS.owners("m")) > 60
    asked = calls(redis)
    assert {owner: late.position("m", owner) for owner in OWNERS} == before
    assert calls(redis) == asked + 1


def test_numbers_that_redis_has_lost_are_forgotten_everywhere(redis: Redis) -> None:
    first, second = OwnerNumbers(redis), OwnerNumbers(redis)
    for owner in OWNERS[:3]:
        first.position("m", owner)
    redis.delete(KEYS.owners("m"))
    assert second.position("m", OWNERS[2]) == position(0)
    first.keep("m")
    assert first.position("m", OWNERS[2]) == position(0)


def test_numbers_that_redis_has_lost_are_forgotten_also_where_others_have_as_many_by_now(redis: Redis) -> None:
    first, second = OwnerNumbers(redis), OwnerNumbers(redis)
    for owner in OWNERS[:3]:
        first.position("m", owner)
    redis.delete(KEYS.owners("m"))
    for owner in OWNERS[10:20]:
        second.position("m", owner)
    first.keep("m")
    assert second.position("m", OWNERS[2]) == first.position("m", OWNERS[2]) == position(10)
    # What is known is not read again each second.
    before = calls(redis)
    first.keep("m")
    assert calls(redis) == before + 4


def test_all_frontends_divide_alike_and_a_new_weight_moves_owners_one_way(
    redis: Redis, frontends: list[ModelVersions]
) -> None:
    before = of_each(frontends[0])
    assert all(of_each(each) == before for each in frontends)
    assert list(before.values()).count("m@2") == 10
    DesiredState(redis).tune(MODELS["m@2"], {"weight": 10})
    assert of_each(frontends[0]) == before
    for each in frontends:
        each.refresh()
    after = of_each(frontends[0])
    assert all(of_each(each) == after for each in frontends)
    assert list(after.values()).count("m@2") == 20
    assert {(before[owner], after[owner]) for owner in OWNERS} == {("m", "m"), ("m", "m@2"), ("m@2", "m@2")}
    DesiredState(redis).tune(MODELS["m@2"], {"weight": ""})
    frontends[0].refresh()
    assert set(of_each(frontends[0]).values()) == {"m"}


def test_callers_without_an_owner_are_dealt_one_by_one_and_by_their_client_if_they_name_it(
    frontends: list[ModelVersions],
) -> None:
    versions = frontends[0]
    assert [versions.route("m", asked_by()) for _ in range(1000)].count("m@2") == 50

    def route(client: str) -> str:
        call = asked_by()
        call.client_id = client
        return versions.route(None, call)

    found = {client: route(client) for client in OWNERS}
    assert list(found.values()).count("m@2") == 10
    assert found == {client: route(client) for client in OWNERS}
    repeated = {versions.route("m", asked_by(HTTP_IDEMPOTENCY_KEY="the same")) for _ in range(300)}
    assert len(repeated) == 1


def test_without_redis_an_owner_that_is_not_known_gets_the_models_own_version(redis: Redis) -> None:
    DesiredState(redis).tune(MODELS["m@2"], {"weight": 100})
    versions = ModelVersions(SETTINGS, redis)
    versions.start()
    assert versions.route("m", asked_by("known")) == "m@2"

    def away(*_: Any, **__: Any) -> Any:
        raise RedisConnectionError("away")

    redis.execute_command = away  # type: ignore[method-assign]
    assert versions.route("m", asked_by("known")) == "m@2"
    assert versions.route("m", asked_by("unknown")) == "m"


def test_a_frontend_that_starts_without_redis_has_the_weights_of_the_file() -> None:
    models = {**MODELS, "m@2": ModelSettings(name="m@2", source="a:B", version="2", weight=100)}
    nowhere = connect("redis://127.0.0.1:1/0")
    versions = ModelVersions(Settings(models=models, default_model="m"), nowhere)
    versions.start()
    assert versions.route("m", asked_by()) == "m@2"

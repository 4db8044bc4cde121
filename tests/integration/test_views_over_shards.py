"""What people and programs see of requests in four shards: summed up, found by any name, sent back where it was; and
what they see while one of two servers is away.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import kill
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from redis import Redis

from batching.claim.store import RedisBatchStore
from batching.fast_header import FastHeader, write_fast_header
from cli.operate.dlq import dlq
from cli.operate.fleet import queues
from config.keys import Shard
from config.redis import connect
from config.settings import Settings
from config.shards import Place, Places, only_home
from config.tiers import Tier
from tasks.callbacks.store import CallbackStore
from tasks.celery.revoke import _telling
from tasks.fleet.dead_letters import DeadLetters
from tasks.fleet.queue_reader import QueueReader
from tasks.fleet.registry_reader import Fleet
from tasks.observability.explain import explain
from tasks.observability.history import History, Point
from tasks.observability.metrics import SharedMetrics
from tasks.protocol.ids import place_of
from tests.integration.queueing import now_ms
from tests.integration.sharded_requests import MODEL, MODELS, beat, give_up, id_in, put
from tests.shards import places_of, redis_environment
from tests.valkey import PrivateValkey
from tests.waiting import wait_until
from webapp.api import health
from webapp.app import make_services
from webapp.ops import dead_letters
from webapp.readiness import Readiness
from webapp.request import HttpRequest

CONFIG = f'[models.{MODEL}]\nsource = "workers.models.echo:Echo"\n'


@pytest.fixture
def places(redis: Redis) -> Places:
    return places_of(redis, 4)


@pytest.fixture(scope="module")
def far(valkey: PrivateValkey) -> Iterator[PrivateValkey]:
    server = PrivateValkey()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def apart(redis: Redis, far: PrivateValkey) -> Iterator[Places]:
    """Shards 0 and 1 with the home on one server, or on its cluster; 2 and 3 on another."""
    if far._process is None:
        far.start()
    other = connect(far.url, connect_timeout_s=0.5)
    other.flushdb()
    near = places_of(redis, 4)
    yield Places(near.home, (*near.shards[:2], *(Place(Shard(f"{{s{n}}}"), other, n) for n in (2, 3))))
    other.close()


@contextmanager
def hanging(server: PrivateValkey) -> Iterator[None]:
    kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(server.pid, signal.SIGCONT)


def reader_of(places: Places) -> QueueReader:
    return QueueReader(places, Fleet(places.home.redis))


def test_queues_are_summed_over_all_places(places: Places) -> None:
    for depth, place in enumerate(places, 1):
        put(place, *(id_in(place) for _ in range(depth)))
        second = place.redis.time()[0]
        # For whole seconds before the one in which they are read, whichever that is.
        for ago in range(-60, 6):
            place.redis.hset(place.keys.arrivals(second - ago), place.keys.queue(MODEL, Tier.PAID), depth)
    beat(places)
    waiting = reader_of(places).read([MODEL])
    enterprise, paid, free = waiting.queues
    assert [(row.tier, row.depth) for row in (enterprise, paid, free)] == [("enterprise", 0), ("paid", 15), ("free", 0)]
    assert paid.arrival_rps == 15
    assert [(row.name, row.depth, row.workers) for row in waiting.shards] == [
        *((f"s{n}", n + 1, 1) for n in range(4)),
        ("home", 5, 1),
    ]
    assert waiting.down == {}


def test_the_oldest_of_all_places_counts(places: Places) -> None:
    for place, age_ms in zip(places, (10, 40_000, 20, 30, 5), strict=True):
        now = now_ms(place.redis)
        header = FastHeader(now + 90_000, now + 60_000, now - age_ms, 0, 0, False, 60_000, id_in(place))
        place.redis.lpush(place.keys.queue(MODEL, Tier.PAID), write_fast_header(header) + b'"}}')
    (paid,) = (row for row in reader_of(places).queues([MODEL]) if row.tier == "paid")
    assert 40_000 <= paid.oldest_ms < 80_000


def test_a_shard_without_a_worker_shows(places: Places) -> None:
    beat(places)
    lonely = places.shards[2]
    lonely.redis.delete(lonely.keys.workers())
    rows = reader_of(places).read([MODEL]).shards
    assert {row.name: row.workers for row in rows} == {"s0": 1, "s1": 1, "s2": 0, "s3": 1, "home": 1}


def test_one_shard_costs_what_it_did(redis: Redis) -> None:
    one = only_home(redis)
    reader, letters = reader_of(one), DeadLetters(one)
    reader.read(["a", "b", "c"], [])
    redis.config_resetstat()
    reader.read(["a", "b", "c"], [])
    letters.read()
    letters.count()
    explain(one, ["a"], "nobody")
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in redis.info("commandstats").items()}
    # A look for each model and the arrivals of five seconds; nothing is asked twice, or of another place.
    assert (calls["evalsha"], calls["hgetall"], calls["zcard"], calls["zrevrange"]) == (3, 5 + 2, 1, 1)
    assert "script|load" not in calls


def test_dead_letters_are_those_of_all_places_the_newest_first(places: Places) -> None:
    ids = [give_up(place, failed_at) for place, failed_at in zip(places, (3, 5, 1, 4, 2), strict=True)]
    letters = DeadLetters(places)
    newest = [ids[1], ids[3], ids[0], ids[4], ids[2]]
    assert [each.id for each in letters.newest()] == newest
    assert [each.id for each in letters.newest(2)] == newest[:2]
    assert sorted(letters.ids()) == sorted(ids)
    assert letters.count() == (5, True)


def test_a_replayed_dead_letter_goes_back_to_its_place(places: Places) -> None:
    letters = DeadLetters(places)
    for place in places:
        task_id = give_up(place, 1)
        shown = letters.show(task_id)
        assert shown is not None
        assert shown[0].id == task_id
        assert letters.replay(task_id, 30.0, 60.0)
        assert not letters.replay(task_id, 30.0, 60.0)
        assert place.redis.llen(place.keys.queue(MODEL, Tier.PAID)) == 1
        assert msgspec.json.decode(place.redis.get(place.keys.result(task_id)))["status"] == "PENDING"
        (claimed,) = RedisBatchStore(place.redis, "w1", place.keys).claim(MODEL, f"again-{task_id}", 9).entries
        assert task_id.encode() in claimed.message
    assert letters.ids() == []


def test_a_dropped_dead_letter_is_gone_from_its_place(places: Places) -> None:
    ids = [give_up(place, 1) for place in places]
    letters = DeadLetters(places)
    assert all(map(letters.drop, ids))
    assert not any(map(letters.drop, ids))
    assert places.home.redis.keys("bunch:dead*") == []


def test_a_request_is_explained_by_its_id_and_by_its_callers(places: Places) -> None:
    for number, place in enumerate(places):
        first, second = id_in(place), id_in(place)
        put(place, first, second)
        place.redis.set(place.keys.request(f"case-{number}"), second)
        about = explain(places, [MODEL], f"case-{number}")
        assert about is not None
        assert (about["task_id"], about["status"]) == (second, "queued")
        assert about["where"] == f"in {place.keys.queue(MODEL, Tier.PAID)}, 1 before it"
        assert explain(places, [MODEL], second) == about | {"request_id": second}
    assert explain(places, [MODEL], "nobody's") is None
    assert explain(places, [MODEL], id_in(places.shards[3])) is None


def test_a_batch_of_several_shards_is_explained_as_one(places: Places) -> None:
    beat(places)
    ids = []
    for place in (places.shards[1], places.shards[3], places.home):
        ids += [id_in(place), id_in(place)]
        put(place, *ids[-2:])
        RedisBatchStore(place.redis, "w1", place.keys).claim(MODEL, "one", 8)
    for task_id in ids:
        about = explain(places, [MODEL], task_id)
        assert about is not None
        assert (about["status"], about["batch"]["id"], about["batch"]["size"]) == ("running", "one", 6)


def test_the_result_that_is_pushed_is_read_in_its_shard(places: Places) -> None:
    store = CallbackStore(places)
    place = places.shards[2]
    task_id = id_in(place)
    store.owe(task_id, "http://127.0.0.1:1/", MODEL, Tier.PAID, 10.0, 0.0)
    place.redis.set(place.keys.result(task_id), b"done", px=10_000_000)
    assert store.result(task_id) == b"done"
    assert place.redis.keys("bunch:callback*{*") == []
    (callback,) = store.read([task_id])
    assert callback is not None
    store.delivered(task_id, callback, 60_000, 1.0)
    assert 0 < place.redis.pttl(place.keys.result(task_id)) <= 60_000


def test_a_revoked_request_of_a_shard_is_cancelled_there(places: Places) -> None:
    said: list[Any] = []

    def as_celery_does(state: Any, task_id: Any, **options: Any) -> dict[str, str]:
        for each in task_id:
            places.home.redis.set(places.home.keys.result(each), "REVOKED")
        said.append(task_id)
        return {"ok": "flagged"}

    revoke = _telling(as_celery_does, places, 10_000)
    ids = [id_in(place) for place in places]
    for place, task_id in zip(places, ids, strict=True):
        put(place, task_id)
    assert revoke(SimpleNamespace(), task_id=ids) == {"ok": "flagged"}
    assert said == [ids]
    for place, task_id in zip(places.shards, ids, strict=False):
        assert msgspec.json.decode(place.redis.get(place.keys.result(task_id)))["status"] == "REVOKED"
        assert place.redis.zscore(place.keys.cancelled(), task_id) is not None
        # What Celery knows no better than to leave at home.
        assert not places.home.redis.exists(places.home.keys.result(task_id))
    assert places.home.redis.get(places.home.keys.result(ids[-1])) == b"REVOKED"


def test_commands_add_up(
    valkey: PrivateValkey, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in places:
        give_up(place, 1)
        put(place, id_in(place))
    say = commands(tmp_path, monkeypatch, valkey.url)
    rows = {(row["model"], row["tier"]): row["depth"] for row in msgspec.json.decode(say(queues, "--json"))}
    assert rows == {(MODEL, "enterprise"): 0, (MODEL, "paid"): 5, (MODEL, "free"): 0}
    assert len(msgspec.json.decode(say(dlq, "list", "--json"))) == 5
    assert len(msgspec.json.decode(say(dlq, "replay", "--all", "--json"))["replayed"]) == 5
    assert [place.redis.llen(place.keys.queue(MODEL, Tier.PAID)) for place in places] == [2] * 5


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> Callable[..., str]:
    config = folder / "bunch.toml"
    config.write_text(CONFIG)
    for name, value in (redis_environment(url) | {"BUNCH_SHARDS": "4"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BUNCH_STATE_DIR", str(folder))

    def say(command: Any, *arguments: str) -> str:
        done = CliRunner().invoke(command, [*arguments, "--config", str(config)])
        assert done.exit_code == 0, done.output
        return done.stdout

    return say


def test_a_shard_that_is_down_is_named_and_the_rest_is_shown(apart: Places, far: PrivateValkey) -> None:
    dead = [give_up(place, 1) for place in apart]
    for place in apart:
        put(place, id_in(place))
    letters = DeadLetters(apart)
    far.kill()
    waiting = reader_of(apart).read([MODEL])
    assert sum(row.depth for row in waiting.queues) == 3
    assert sorted(waiting.down) == ["s2", "s3"]
    found, down = letters.read()
    assert sorted(each.id for each in found) == sorted([dead[0], dead[1], dead[4]])
    assert sorted(down) == ["s2", "s3"]
    assert letters.count() == (3, False)


def test_dead_letters_of_a_shard_that_is_down_keep_none_of_the_others(apart: Places, far: PrivateValkey) -> None:
    lost, found = [give_up(apart.shards[n], 1) for n in (2, 2, 3)], [give_up(apart.shards[n], 1) for n in (0, 1)]
    services = make_services(Settings(models=MODELS, default_model=MODEL, shards=4), apart)
    far.kill()
    ids = [lost[0], found[0], *lost[1:], found[1]]
    assert dead_letters.replay(services, {"ids": ids}).startswith("2 dead letters queued again; 3 skipped")
    assert dead_letters.drop(services, {"ids": ids}).startswith("0 dead letters deleted; 5 skipped")
    done = DeadLetters(apart).for_each(ids, str.upper)
    assert done == {each: each.upper() for each in ids}


def test_a_shard_that_hangs_holds_up_nobody(apart: Places, far: PrivateValkey) -> None:
    reader = reader_of(apart)
    with hanging(far):
        waiting = reader.read([MODEL], within_s=1.5)
    assert waiting.down == dict.fromkeys(("s2", "s3"), "no reply within 1.5 s")


def test_dead_letters_of_a_shard_are_not_news_when_it_is_back(apart: Places, far: PrivateValkey) -> None:
    for place in apart:
        give_up(place, 1)
    fleet = Fleet(apart.home.redis)
    kept = History(apart, fleet, QueueReader(apart, fleet), SharedMetrics(apart.home.redis), [MODEL])
    assert kept.take_if_due()
    far.kill()
    assert kept.now().dead == kept.points()[-1].dead == 5
    apart.home.redis.delete(apart.home.keys.history())
    assert isinstance(kept.now(), Point)
    assert kept.now().dead == 3


def test_metrics_and_health_say_which_shard_is_down(apart: Places, far: PrivateValkey) -> None:
    beat(apart)
    services = make_services(Settings(models=MODELS, default_model=MODEL, shards=4), apart)
    call = HttpRequest({"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics"})
    assert msgspec.json.decode(health.health(services, call).body)["status"] == "healthy"
    far.kill()
    lines = health.metrics(services, call).body.decode().splitlines()
    up = {line for line in lines if line.startswith("bunch_shard_up{")}
    names = ("s0", "s1", "s2", "s3", "home")
    assert up == {f'bunch_shard_up{{shard="{name}"}} {value}.0' for name, value in zip(names, "11001", strict=True)}
    about = msgspec.json.decode(health.health(services, call).body)
    assert (about["status"], about["unavailable_shards"]) == ("degraded", ["s2", "s3"])


def test_a_frontend_is_ready_while_a_shard_answers(apart: Places, far: PrivateValkey) -> None:
    beat(apart)
    far.kill()
    readiness = Readiness(apart, Fleet(apart.home.redis, 60.0), MODELS)
    standing = readiness.look(30.0)
    assert standing is not None
    assert standing.served == {MODEL}


def test_shards_say_what_is_served_while_the_home_is_away(apart: Places, far: PrivateValkey) -> None:
    # The home on the server that goes.
    turned = Places(Place(Shard(), apart.shards[2].redis), apart.shards[:2])
    beat(turned)
    readiness = Readiness(turned, Fleet(turned.home.redis, 60.0), MODELS)
    far.kill()
    standing = readiness.look(30.0)
    assert standing is not None
    assert standing.served == {MODEL}
    for place in turned.shards:
        place.redis.delete(place.keys.pace(MODEL))
    standing = readiness.look(30.0, max_age_s=0.0)
    assert standing is not None
    assert standing.served == set()


def test_health_says_that_callers_are_served_while_the_home_is_away(apart: Places, far: PrivateValkey) -> None:
    turned = Places(Place(Shard(), apart.shards[2].redis), apart.shards[:2])
    beat(turned)
    services = make_services(Settings(models=MODELS, default_model=MODEL, shards=2), turned)
    call = HttpRequest({"REQUEST_METHOD": "GET", "PATH_INFO": "/internal/health"})
    far.kill()

    def told() -> tuple[Any, ...]:
        answer = health.health(services, call)
        about = msgspec.json.decode(answer.body)
        parts = ("status", "redis", "unavailable_shards", "unavailable_models")
        return answer.status, *(about.get(each) for each in parts)

    # A slow machine may not say within the time of a probe.
    wait_until(lambda: told() == (200, "degraded", "down", ["home"], []))
    for place in turned.shards:
        place.redis.delete(place.keys.pace(MODEL))
    services.readiness.look(30.0, max_age_s=0.0)
    assert told()[:2] == (503, "unhealthy")


def test_without_any_shard_nothing_is_ready(apart: Places, far: PrivateValkey) -> None:
    turned = Places(apart.home, apart.shards[2:])
    beat(turned)
    readiness = Readiness(turned, Fleet(turned.home.redis, 60.0), MODELS)
    assert readiness.look(30.0) is not None
    far.kill()
    assert readiness.look(30.0, max_age_s=0.0) is None


def test_an_id_finds_its_place(places: Places) -> None:
    assert [place_of(places, id_in(place)) for place in places] == list(places)
    assert place_of(places, "somebody-else-made-this") is places.home

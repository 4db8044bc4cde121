"""Models that nobody asks cost their worker and Redis next to nothing, and lose nothing by it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from celery import Celery
from redis import Redis

from tests.integration.celery_harness import (
    PATIENCE_S,
    bunch_worker,
    close_client,
    infer,
    plain_client,
    wait_for_models,
)
from tests.shards import everywhere, places_of, servers_of
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

NAMES = tuple(f"m{number}" for number in range(8))
MODELS = "".join(f'[models.{name}]\nsource = "workers.models.echo:Echo"\n' for name in NAMES)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Celery, Redis]]:
    valkey = PrivateValkey()
    valkey.start()
    worker = bunch_worker(tmp_path_factory.mktemp("idle"), valkey, MODELS).start()
    app, redis = plain_client(valkey.url), everywhere(valkey.client())
    try:
        wait_for_models(redis, *NAMES)
        wait_until(lambda: rate(redis, "blpop") < 3, "all of them are held together", patience_s=PATIENCE_S)
        yield app, redis
    finally:
        worker.stop()
        close_client(app)
        redis.close()
        valkey.stop()


def rate(redis: Redis, command: str | None = None) -> float:
    """Calls a second over one second, those inside scripts too."""

    def calls() -> int:
        rows = [row for each in servers_of(redis) for row in each.info("commandstats").items()]
        return sum(row["calls"] for name, row in rows if command in {None, name.removeprefix("cmdstat_")})

    before, began = calls(), time.monotonic()
    time.sleep(1.0)
    return (calls() - before) / (time.monotonic() - began)


def test_idle_models_share_one_look(client: tuple[Celery, Redis]) -> None:
    # A heartbeat has two commands a model in each place. A model that looked by itself had 180 a second.
    places = len(list(places_of(client[1])))
    assert rate(client[1]) < 100 + 4 * len(NAMES) * places


def test_each_of_them_answers_a_client_that_rings_no_bell_and_is_idle_again(client: tuple[Celery, Redis]) -> None:
    app, redis = client
    results = {name: infer(app, name, queue=f"bunch.{name}.free").apply_async() for name in NAMES}
    assert {name: result.get(timeout=PATIENCE_S) for name, result in results.items()} == {name: name for name in NAMES}
    wait_until(lambda: rate(redis, "blpop") < 3, "all of them are held together again", patience_s=PATIENCE_S)
    assert infer(app, "again", queue=f"bunch.{NAMES[3]}.paid").apply_async().get(timeout=PATIENCE_S) == "again"


def test_what_has_a_priority_reaches_the_queue_of_its_own_model(client: tuple[Celery, Redis]) -> None:
    app, _ = client
    sent = [infer(app, name, queue=f"bunch.{name}.paid").apply_async(priority=6) for name in NAMES[:3]]
    assert [each.get(timeout=PATIENCE_S) for each in sent] == list(NAMES[:3])

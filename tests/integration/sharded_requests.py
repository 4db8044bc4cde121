"""Requests, dead letters and heartbeats in any place, put there without frontends and workers."""

from __future__ import annotations

import msgspec

from batching.claim.registry import WorkerRegistry
from batching.claim.store import RedisBatchStore, Settled
from config.settings import ModelSettings
from config.shards import Place, Places
from config.tiers import Tier
from tasks.fleet.registry_reader import ExecutorRow, WorkerRow
from tasks.protocol.ids import new_id, sharded_id
from tasks.protocol.results import DeadLetter
from tests.fakes.messages import our_message

MODEL = "m"
MODELS = {MODEL: ModelSettings(name=MODEL, source="workers.models.echo:Echo")}


def id_in(place: Place) -> str:
    return new_id() if place.number is None else sharded_id(new_id(), place.number)


def put(place: Place, *task_ids: str, tier: Tier = Tier.PAID) -> None:
    for each in task_ids:
        place.redis.lpush(place.keys.queue(MODEL, tier), our_message(each, b"1", tier=tier))
        state = f'{{"status":"PENDING","result":null,"traceback":null,"children":[],"task_id":"{each}"}}'
        place.redis.set(place.keys.result(each), state, px=60_000)


def give_up(place: Place, failed_at: int) -> str:
    """A request of that place that failed for good; returns its id."""
    task_id = id_in(place)
    put(place, task_id)
    store = RedisBatchStore(place.redis, "w1", place.keys)
    store.claim(MODEL, f"b-{task_id}", 1)
    letter = DeadLetter(task_id, MODEL, "paid", "broke", "InferenceFailed", "", 2, 1, "b1", 0, failed_at)
    store.finish(f"b-{task_id}", [Settled(1, task_id, 1000, "", b"{}", msgspec.json.encode(letter))], last=True)
    place.redis.zadd(place.keys.dead(), {task_id: failed_at})
    return task_id


def beat(places: Places, ready: str = "ready") -> None:
    """A worker's heartbeat in every place, with one executor."""
    row = WorkerRow("w1", "host", 1, 0.0, (ExecutorRow(MODEL, f"{MODEL}/0", ready),))
    for place in places:
        registry = WorkerRegistry(place.redis, 60.0, place.keys)
        registry.beat(row.id, msgspec.json.encode(row) if place is places.home else b"")
        pace = f"{place.redis.time()[0] * 1000};1;10;10;10"
        place.redis.hset(place.keys.pace(MODEL), "w1", pace)

"""A claim loop over shards on two servers, one of which goes away and comes back: the executor goes on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import pytest

from batching.claim.loop import ClaimLoop
from batching.claim.place_lines import PlaceLines
from batching.claim.registry import ModelThroughput
from batching.claim.sharded_registry import ShardedRegistry
from batching.claim.sharded_store import ShardedBatchStore
from batching.request import Failed, Ok, Outcome, Work
from config.keys import Shard
from config.redis import connect
from config.shards import Place, Places
from config.tiers import Tier
from tasks.protocol.results import CeleryCodec, decode_reply
from tests.fakes.claim_rig import MODEL, Eager, Model, ScriptedExecutor, Witness, done
from tests.fakes.messages import our_message
from tests.valkey import FAITHFUL, PrivateValkey
from tests.waiting import wait_until

SAFE, AWAY = 0, 1


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PrivateValkey, PrivateValkey]]:
    both = PrivateValkey(), PrivateValkey(*FAITHFUL)
    for server in both:
        server.start()
    yield both
    for server in both:
        server.stop()


class Fleet:
    """A loop over two shards and the home; shard 1 is on a server that a test kills."""

    def __init__(self, safe: PrivateValkey, other: PrivateValkey) -> None:
        self.other = other
        clients = [connect(each.url) for each in (safe, other)]
        for client in clients:
            client.flushall()
        home = Place(Shard(), clients[0])
        self.shards = tuple(Place(Shard(f"{{s{n}}}"), client, n) for n, client in enumerate(clients))
        self.lines = PlaceLines(Places(home, self.shards))
        self.store = ShardedBatchStore(self.lines, "w1")
        self.executor = ScriptedExecutor(answer=lambda work: None)
        self.witness = Witness()
        self.loop = ClaimLoop(
            Model(), self.executor, self.store, Eager(), CeleryCodec(60_000), self.witness, batch_prefix="w1-0"
        )

    def put(self, shard: int, *task_ids: str) -> None:
        place = self.shards[shard]
        for task_id in task_ids:
            message = our_message(task_id, msgspec.json.encode(task_id), tracked=False)
            place.redis.lpush(place.keys.queue(MODEL, Tier.PAID), message)
        place.redis.lpush(place.keys.bell(MODEL), 1)

    def batch(self, number: int) -> Work:
        """The work of a batch, once the executor has it."""
        wait_until(lambda: len(self.executor.taken) > number, f"batch {number} is there")
        return self.executor.taken[number]

    def finish(self, work: Work, outcome: Outcome | None = None) -> None:
        self.executor.say(done(work, [outcome or Ok(each) for each in work.inputs]))  # type: ignore[list-item]

    def is_answered(self, shard: int, task_id: str) -> bool:
        place = self.shards[shard]
        raw = place.redis.get(place.keys.result(task_id))
        return raw is not None and decode_reply(raw).status == "SUCCESS"  # type: ignore[arg-type]

    def ends(self) -> list[str]:
        return sorted(request.id for request, _ in self.witness.ends)


@pytest.fixture
def fleet(servers: tuple[PrivateValkey, PrivateValkey]) -> Iterator[Fleet]:
    made = Fleet(*servers)
    yield made
    if made.other._process is None:
        made.other.start()
    if made.executor.taken:
        made.loop.stop(0.1)


def started(fleet: Fleet) -> Work:
    """A batch of two requests of each shard, in the executor; the second server is away since."""
    fleet.put(SAFE, "a0", "b0")
    fleet.put(AWAY, "a1", "b1")
    fleet.loop.start()
    work = fleet.batch(0)
    assert sorted(map(msgspec.json.decode, work.inputs)) == ["a0", "a1", "b0", "b1"]
    fleet.other.kill()
    return work


def test_outcomes_of_a_shard_that_is_away_are_stored_when_it_is_back(fleet: Fleet) -> None:
    fleet.finish(started(fleet))
    wait_until(lambda: fleet.is_answered(SAFE, "a0") and fleet.is_answered(SAFE, "b0"), "their callers wait for nobody")
    wait_until(lambda: fleet.ends() == ["a0", "b0"], "what is not stored is not told")
    assert fleet.loop.held == {fleet.batch(0).batch_id}, "it is no stray"
    for number in (1, 2):
        fleet.put(SAFE, f"next{number}")
        fleet.finish(fleet.batch(number))
        wait_until(lambda number=number: fleet.is_answered(SAFE, f"next{number}"), "the executor goes on")
    fleet.other.start()
    wait_until(lambda: fleet.is_answered(AWAY, "a1") and fleet.is_answered(AWAY, "b1"), "they are stored at last")
    wait_until(lambda: fleet.ends() == ["a0", "a1", "b0", "b1", "next1", "next2"], "each is told once")
    wait_until(lambda: not fleet.loop.held, "nothing is left")
    computed = [msgspec.json.decode(each) for work in fleet.executor.taken for each in work.inputs]
    assert sorted(computed) == ["a0", "a1", "b0", "b1", "next1", "next2"], "nothing is computed twice"


def test_what_is_tried_again_waits_in_its_own_shard(fleet: Fleet) -> None:
    fleet.finish(started(fleet), Failed("later", retryable=True))
    # Each has a pause of its own, so they may come one by one.
    for number in range(1, 5):
        if number == 1:
            wait_until(lambda: len(fleet.executor.taken) > 1, "those of the other shard are tried again meanwhile")
            fleet.other.start()
        if len(fleet.ends()) < 4:
            fleet.finish(fleet.batch(number))
            done_so_far = sum(len(work.inputs) for work in fleet.executor.taken[1 : number + 1])
            wait_until(lambda wanted=done_so_far: len(fleet.ends()) == wanted, "their answers are stored")
    assert fleet.ends() == ["a0", "a1", "b0", "b1"], "each is answered once"


def test_what_is_given_back_goes_to_its_own_shard(fleet: Fleet) -> None:
    work = started(fleet)
    fleet.executor.gone = True
    stop = threading.Thread(target=fleet.loop.stop, args=(0.0,))
    stop.start()
    stop.join()
    assert fleet.shards[SAFE].redis.llen(fleet.shards[SAFE].keys.queue(MODEL, Tier.PAID)) == 2
    fleet.other.start()
    lease = fleet.shards[AWAY].keys.lease(work.batch_id)
    assert fleet.shards[AWAY].redis.exists(lease), "the next worker that misses this one takes it back"


def test_a_worker_beats_in_every_shard_that_answers(fleet: Fleet) -> None:
    claimed = {MODEL: [80.0, 10.0, 0.0]}
    registry = ShardedRegistry(fleet.lines, 5.0, claimed_per_s=claimed.__getitem__)
    pace = {MODEL: ModelThroughput(2, 50.0, 0.01, 0.1)}
    assert registry.beat("w1", b'{"node":"w1@here"}', pace) == []
    rates = []
    for place in fleet.lines.places:
        assert place.redis.zscore(place.keys.workers(), "w1")
        assert bool(place.redis.exists(place.keys.worker("w1"))) is (place.number is None)
        rates.append(float(place.redis.hget(place.keys.pace(MODEL), "w1").split(b";")[2]))  # type: ignore[union-attr]
    assert rates == pytest.approx([45.0, 50 / 3, 50.0], rel=1e-4), (
        "what the others leave, at least an even share; home has all"
    )
    fleet.other.kill()
    assert registry.beat("w1", b"{}", pace) == []
    assert registry.home_answers
    assert not fleet.lines.is_there(AWAY)


def test_a_worker_that_one_shard_misses_loses_its_leases_there_alone(fleet: Fleet) -> None:
    gone: list[str] = []
    registry = ShardedRegistry(fleet.lines, 1.0, on_gone=gone.append)
    for shard in (SAFE, AWAY):
        fleet.put(shard, f"t{shard}")
    assert len(fleet.store.claim(MODEL, "b1", 2).entries) == 2
    registry.beat("w2", b"{}")
    safe, other = fleet.shards
    other.redis.zadd(other.keys.workers(), {"w1": 1})
    safe.redis.zadd(safe.keys.workers(), {"w1": 10**15})
    assert registry.beat("w2", b"{}") == [(AWAY, "w1")]
    assert registry.reclaim(AWAY, "w1") == 1
    assert other.redis.llen(other.keys.queue(MODEL, Tier.PAID)) == 1
    assert safe.redis.exists(safe.keys.lease("b1"))
    assert gone == [], "it is at home"

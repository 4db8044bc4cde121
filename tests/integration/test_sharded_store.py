"""Batches over several shards: one batch, several leases, and shards that do not answer."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain

import pytest
from redis import Redis
from redis.exceptions import RedisError

from batching.claim.sharded_store import ShardedBatchStore
from batching.claim.values import Blame, Claim, PlacesAway
from config.redis import connect
from config.tiers import Tier
from tests.fakes.worlds import HOUR_MS, MODEL, epoch_ms, foreign, name_of, names, ours, settled
from tests.integration.some_shards import Shards
from tests.valkey import FAITHFUL, PrivateValkey
from tests.waiting import wait_until


@pytest.fixture
def shards(redis: Redis) -> Iterator[Shards]:
    each = Shards(redis)
    yield each
    # Else its open wait would take a token of the next test.
    each.store.leave_bell()


def test_a_batch_is_filled_from_all_shards_and_each_has_its_lease(shards: Shards) -> None:
    for shard in range(5):
        shards.put(shard, f"a{shard}", f"b{shard}")
    claim = shards.store.claim(MODEL, "b1", 8)
    assert len(claim.entries) == 8
    assert [each.position for each in claim.entries] == list(range(1, 9))
    assert len(shards.leased("b1")) == 4
    assert claim.view.depth == 2
    rest = shards.store.claim(MODEL, "b2", 8)
    assert sorted(names(claim) + names(rest)) == sorted(f"{each}{shard}" for each in "ab" for shard in range(5))


def test_outcomes_reach_the_lease_that_has_their_request(shards: Shards) -> None:
    for shard in range(4):
        shards.put(shard, f"a{shard}", f"b{shard}")
    claim = shards.store.claim(MODEL, "b1", 8)
    outcomes = [settled(each.position, name_of(each.message)) for each in claim.entries]
    assert shards.store.finish("b1", outcomes[::2], last=False)
    assert shards.store.put_aside(MODEL, "b1", [(outcomes[1].position, 0)], last=False)
    assert shards.store.finish("b1", outcomes[3:], last=True)
    assert shards.leased("b1") == []
    for outcome in outcomes:
        shard = int(outcome.task_id[1])
        found = [n for n in range(5) if shards.result(n, outcome.task_id) == outcome.result]
        assert found == ([] if outcome is outcomes[1] else [shard])
    assert names(shards.store.claim(MODEL, "b2", 8)) == [outcomes[1].task_id]
    assert not shards.store.finish("b1", outcomes, last=True), "the batch has ended"


def test_what_is_given_back_is_at_the_head_of_its_own_queue(shards: Shards) -> None:
    for shard in (0, 2, 4):
        shards.put(shard, *(f"{name}{shard}" for name in "abc"))
    before = [shards.queued(shard) for shard in range(5)]
    claim = shards.store.claim(MODEL, "b1", 7)
    assert shards.store.give_back(MODEL, "b1", Blame.ATTEMPT) == len(claim.entries) == 7
    assert [shards.queued(shard) for shard in range(5)] == before
    assert shards.store.give_back(MODEL, "b1", Blame.ATTEMPT) == -1


def test_the_answer_to_an_unheard_claim_is_found_by_a_repeat(redis: Redis, shards: Shards) -> None:
    for shard in range(4):
        shards.put(shard, f"a{shard}", f"b{shard}")
    first = shards.store.claim(MODEL, "b1", 8)
    # A worker that has not heard of the leases does not know of its parts either; this one asks for the same.
    again = shards.store.claim(MODEL, "b1", 8)
    assert again.entries == first.entries
    assert redis.llen(shards.all[0].keys.queue(MODEL, Tier.PAID)) == 0


def test_a_higher_tier_goes_first_wherever_it_waits(shards: Shards) -> None:
    shards.put(0, *(f"f{n}" for n in range(20)), tier=Tier.FREE, enqueued=epoch_ms() + HOUR_MS)
    shards.put(3, *(f"e{n}" for n in range(5)), tier=Tier.ENTERPRISE, enqueued=epoch_ms() + HOUR_MS)
    shards.put(4, *(f"p{n}" for n in range(5)), tier=Tier.PAID, enqueued=epoch_ms() + HOUR_MS)
    taken = Counter(name[0] for name in names(shards.store.claim(MODEL, "b1", 10)))
    assert taken == {"e": 5, "p": 4, "f": 1}, "the free tier keeps its tenth"


def test_a_paused_tier_is_left_in_every_shard(shards: Shards) -> None:
    for shard in range(4):
        shards.put(shard, f"p{shard}", tier=Tier.PAID)
        shards.put(shard, f"f{shard}", tier=Tier.FREE)
    paused = frozenset({Tier.PAID.rank})
    assert shards.store.look(MODEL, paused).depths == (0, 0, 4)
    assert sorted(names(shards.store.claim(MODEL, "b1", 8, paused=paused))) == ["f0", "f1", "f2", "f3"]


def test_suspects_are_alone_in_their_batch_whatever_waits_in_other_shards(shards: Shards) -> None:
    shards.put(0, "suspect", lost=1)
    shards.put(1, "a1", "b1")
    shards.put_raw(4, foreign("theirs"))
    batches: list[list[str]] = []
    for number in range(6):
        batches.append(sorted(names(shards.store.claim(MODEL, f"b{number}", 8))))
        shards.store.finish(f"b{number}", (), last=True)
    assert sorted(chain(*batches)) == ["a1", "b1", "suspect", "theirs"]
    assert ["suspect"] in batches


def test_the_bytes_of_a_batch_are_bounded_over_all_shards(shards: Shards) -> None:
    for shard in range(4):
        for number in range(3):
            name = f"{shard}{number}"
            shards.put_raw(shard, ours(name)[:-1] + b',"more":"' + b"x" * 1000 + b'"}')
    seen: list[str] = []
    for number in range(20):
        claim = shards.store.claim(MODEL, f"b{number}", 8, max_bytes=3000)
        assert sum(len(each.message) for each in claim.entries) <= 3000
        seen += names(claim)
        shards.store.finish(f"b{number}", (), last=True)
    assert sorted(seen) == sorted(f"{shard}{number}" for shard in range(4) for number in range(3))


def test_one_wait_is_for_the_bells_of_all_shards(shards: Shards) -> None:
    for shard in (2, 4, 0):
        shards.store.leave_bell()
        shards.put(shard, "a")
        assert shards.store.wait_for_bells([MODEL], 5.0) == MODEL
    assert shards.store.wait_for_bells([MODEL], 0.001) is None


def test_many_executors_that_wait_have_one_connection(redis: Redis, shards: Shards) -> None:
    before = len(redis.client_list())
    ends: list[str | None] = []
    threads = [
        threading.Thread(target=lambda: ends.append(shards.store.wait_for_bells([MODEL], 20.0))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: any(each["cmd"] == "blpop" for each in redis.client_list()), "one listens")
    assert len(redis.client_list()) <= before + len(shards.places.by_server())
    for count in range(1, 9):
        shards.put(count % 5, f"t{count}")
        wait_until(lambda count=count: len(ends) >= count, "each token wakes one")
    for thread in threads:
        thread.join()
    assert ends == [MODEL] * 8


def test_an_idle_worker_sees_work_in_any_shard(shards: Shards) -> None:
    anything: frozenset[int] = frozenset()
    assert shards.store.peek({"other": anything, MODEL: anything}) == set()
    assert shards.store.is_told
    shards.put(3, "a")
    # The change is announced, or the bell rings.
    began = time.monotonic()
    assert shards.store.wait_for_changes(["other", MODEL], 20.0) in {None, MODEL}
    assert time.monotonic() - began < 10
    assert shards.store.peek({"other": anything, MODEL: anything}) == {MODEL}
    shards.all[4].redis.lpush(shards.all[4].keys.queue("other", Tier.FREE), foreign("f"))
    assert shards.store.wait_for_changes(["other"], 20.0) is None, "a plain client does not ring"
    assert time.monotonic() - began < 10
    assert shards.store.peek({"other": anything, MODEL: anything}) == {MODEL, "other"}


def test_keys_of_sixteen_shards_are_served_alike(redis: Redis) -> None:
    """One key has queued hundreds; eleven others, in other shards and in the same, have a few each time."""
    shards = Shards(redis, count=16)
    greedy, polite = "aaaaaaaa", [f"{number:08x}" for number in range(1, 12)]
    soon = epoch_ms() + HOUR_MS
    shards.put(0, *(f"g{number}" for number in range(400)), key=greedy, enqueued=soon)
    served: Counter[str] = Counter()
    waited: list[int] = []
    came: dict[str, int] = {}
    for batch in range(30):
        for number, key in enumerate(polite):
            task_id = f"p{number}.{batch}"
            came[task_id] = batch
            shards.put(number % 4 * 5, task_id, key=key, enqueued=soon)
        shards.put(0, *(f"g{batch}.{number}" for number in range(21)), key=greedy, enqueued=soon)
        for each in names(shards.store.claim(MODEL, f"b{batch}", 32)):
            served[each[0]] += 1
            if each in came:
                waited.append(batch - came[each])
        shards.store.finish(f"b{batch}", (), last=True)
        # The time that a quick model takes: what is known of other shards is as old.
        time.sleep(0.02)
    assert served["p"] + served["g"] == 30 * 32
    assert len(waited) >= 0.9 * len(came)
    assert max(waited) <= 2, "nobody waits for another key's hundreds"


def test_no_shard_is_forgotten_while_others_fill_every_batch(redis: Redis) -> None:
    shards = Shards(redis, count=4)
    shards.store = ShardedBatchStore(shards.lines, "w1", ageing_s=0.05)
    for shard in range(3):
        shards.put(shard, *(f"{shard}.{n}" for n in range(400)), enqueued=epoch_ms() + HOUR_MS)
    shards.store.claim(MODEL, "first", 8)
    # Nothing rings for it: as a plain Celery client does.
    shards.all[4].redis.lpush(shards.all[4].keys.queue(MODEL, Tier.PAID), foreign("theirs"))
    for number in range(60):
        if "theirs" in names(shards.store.claim(MODEL, f"b{number}", 8)):
            break
        time.sleep(0.01)
    assert number < 40


class Two:
    """Shards over two servers, of which one is stopped and started again. The even shards and the home are safe."""

    def __init__(self, safe: PrivateValkey, other: PrivateValkey) -> None:
        self.other = other
        self.shards = Shards(connect(safe.url), connect(other.url))
        self.store = self.shards.store

    def claim(self, batch_id: str, size: int = 8) -> Claim:
        return self.store.claim(MODEL, batch_id, size)

    def fill(self, *numbers: int) -> None:
        for shard in numbers:
            self.shards.put(shard, f"a{shard}", f"b{shard}")


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PrivateValkey, PrivateValkey]]:
    both = PrivateValkey(), PrivateValkey(*FAITHFUL)
    for server in both:
        server.start()
    yield both
    for server in both:
        server.stop()


@pytest.fixture
def two(servers: tuple[PrivateValkey, PrivateValkey]) -> Iterator[Two]:
    for server in servers:
        with server.client() as client:
            client.flushall()
    yield Two(*servers)
    for server in servers:
        if server._process is None:
            server.start()


def test_a_server_that_is_away_stops_nobody_and_is_logged_once(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    two.fill(0, 1, 2, 3)
    assert two.store.look(MODEL).depth == 8
    two.other.kill()
    with caplog.at_level(logging.WARNING):
        first = two.claim("b1")
        assert sorted(names(first)) == ["a0", "a2", "b0", "b2"]
        two.store.finish("b1", [settled(each.position, name_of(each.message)) for each in first.entries], last=True)
        two.fill(2)
        assert two.store.look(MODEL).depth == 2
        assert two.store.wait_for_bells([MODEL], 5.0) == MODEL
        assert two.store.peek({MODEL: frozenset()}) == {MODEL}
        assert sorted(names(two.claim("b2"))) == ["a2", "b2"]
    assert len([each for each in caplog.records if "do not answer" in each.message]) == 1
    two.other.start()
    wait_until(lambda: two.store.look(MODEL).depth == 4, "its requests are seen again")
    assert sorted(names(two.claim("b3"))) == ["a1", "a3", "b1", "b3"]


def test_outcomes_of_a_shard_that_is_away_become_a_batch_of_their_own(two: Two) -> None:
    two.fill(0, 1)
    claim = two.claim("b1")
    outcomes = [settled(each.position, name_of(each.message)) for each in claim.entries]
    two.other.kill()
    with pytest.raises(PlacesAway) as raised:
        two.store.finish("b1", outcomes, last=True)
    away = raised.value
    assert away.done
    ((rest_id, positions),) = away.rests.items()
    assert positions == {each.position for each in outcomes if each.task_id.endswith("1")}
    assert two.shards.result(0, "a0")
    assert two.shards.result(0, "b0")
    rest = [each for each in outcomes if each.position in positions]
    with pytest.raises(RedisError):
        two.store.finish(rest_id, rest, last=True)
    two.other.start()
    assert two.store.finish(rest_id, rest, last=True)
    assert two.shards.result(1, "a1") == rest[0].result
    assert not two.shards.leased("b1")


def test_a_lease_that_nobody_heard_of_goes_back_when_its_server_answers(
    two: Two, servers: tuple[PrivateValkey, PrivateValkey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim runs on both servers; the reply of one does not come."""
    two.fill(0, 1)
    two.store.look(MODEL)
    ask = two.shards.lines.ask
    answered = []

    def half_deaf(calls: dict[int, object]) -> dict[int, list[object]]:
        answers = ask(calls)  # type: ignore[arg-type]
        if 1 in calls and not answered:
            answered.append(answers[1])
            servers[1].kill()
            answers[1] = [RedisError("the reply did not come")]
            two.shards.lines.note(answers)
        return answers

    monkeypatch.setattr(two.shards.lines, "ask", half_deaf)
    claim = two.claim("b1")
    assert sorted(names(claim)) == ["a0", "b0"]
    assert answered, "the other server has made its lease"
    servers[1].start()
    wait_until(lambda: two.shards.queued(1) == ["a1", "b1"], "nothing of it is lost")
    assert two.shards.leased("b1") == [0]
    assert sorted(names(two.claim("b2"))) == ["a1", "b1"]


def test_a_random_life_with_a_server_that_comes_and_goes_loses_nothing(two: Two) -> None:
    rng = random.Random(3)
    waiting: set[str] = set()
    seen: Counter[str] = Counter()
    count = 0
    is_down = False

    def settle(batch_id: str, claim: Claim) -> dict[str, list[str]]:
        done = [each for each in claim.entries if rng.random() < 0.7]
        rest_of = {each.position: name_of(each.message) for each in claim.entries}
        rests: dict[str, list[str]] = {}
        try:
            two.store.finish(batch_id, [settled(each.position, name_of(each.message)) for each in done], last=False)
        except PlacesAway as away:
            rests |= {rest: [rest_of[position] for position in of] for rest, of in away.rests.items()}
        try:
            two.store.give_back(MODEL, batch_id, Blame.NOTHING)
        except PlacesAway as away:
            rests |= {rest: [rest_of[position] for position in of] for rest, of in away.rests.items()}
        for each in done:
            if name_of(each.message) not in chain(*rests.values()):
                seen[name_of(each.message)] += 1
        return rests

    open_rests: dict[str, list[str]] = {}
    for step in range(60):
        if step % 12 == 6:
            two.other.kill()
            is_down = True
        elif step % 12 == 11:
            two.other.start()
            is_down = False
        for shard in range(5):
            if shard % 2 and is_down:
                continue
            name = f"t{count}"
            count += 1
            waiting.add(name)
            two.shards.put(shard, name)
        open_rests |= settle(f"b{step}", two.claim(f"b{step}", 4))
    if is_down:
        two.other.start()
    for rest in open_rests:
        two.store.give_back(MODEL, rest, Blame.NOTHING)
    wait_until(lambda: two.store.look(MODEL).depth == len(waiting) - len(seen), "whatever is not answered waits")
    left = list(chain.from_iterable(two.shards.queued(shard) for shard in range(5)))
    assert Counter(left) + seen == Counter(waiting), "each is in one place, and answered once"

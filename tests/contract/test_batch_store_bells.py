"""The contract of a batch store: how a waiting executor learns of work."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread

from batching.claim.store import Blame, Claim
from batching.fast_header import read_fast_header
from config.tiers import Tier
from tests.fakes.worlds import (
    MODEL,
    PAUSE_MS,
    World,
    ours,
)


def test_the_bell_rings_once_for_what_came_since(world: World) -> None:
    assert not world.store.wait_for_bells([MODEL], 0.001)
    # Its BLPOP may still be open, and would take the first token before the second comes.
    world.store.leave_bell()
    world.put(ours("a"), Tier.PAID)
    world.put(ours("b"), Tier.PAID)
    assert world.store.wait_for_bells([MODEL], 5.0)
    assert not world.store.wait_for_bells([MODEL], 0.001)


def test_giving_back_rings(world: World) -> None:
    world.put(ours("a"), Tier.PAID)
    world.store.claim(MODEL, "b1", 1)
    world.store.wait_for_bells([MODEL], 5.0)
    world.store.give_back(MODEL, "b1", Blame.NOTHING)
    assert world.store.wait_for_bells([MODEL], 5.0)


def test_one_wait_for_several_bells_says_which_rang(world: World) -> None:
    world.put(ours("a"), Tier.PAID)
    assert world.store.wait_for_bells(["other", MODEL], 5.0) == MODEL
    assert world.store.wait_for_bells(["other", MODEL], 0.001) is None
    world.store.ring("other")
    assert world.store.wait_for_bells(["other", MODEL], 5.0) == "other"
    world.store.leave_bell()
    world.store.ring("other")
    assert world.store.wait_for_bells(["other"], 5.0) == "other"


def test_a_claim_that_leaves_something_rings(world: World) -> None:
    world.put(ours("a"), Tier.PAID)
    world.put(ours("b"), Tier.PAID)
    world.put(ours("c"), Tier.FREE)
    # All of it: a wait that ends too early leaves its token to the next one.
    assert world.store.wait_for_bells([MODEL], 5.0) == MODEL
    world.store.claim(MODEL, "b1", 1)
    assert world.store.wait_for_bells([MODEL], 5.0) == MODEL
    world.store.claim(MODEL, "b2", 1, paused=frozenset({Tier.FREE.rank}))
    assert world.store.wait_for_bells([MODEL], 0.001) is None, "nobody may claim what is left"


def test_a_claim_that_waits_for_the_bell_brings_what_comes(world: World) -> None:
    claims: SimpleQueue[Claim] = SimpleQueue()
    waiting = Thread(target=lambda: claims.put(world.store.claim(MODEL, "b1", 2, when_rung_s=4.0)))
    waiting.start()
    message = ours("a")
    world.put(message, Tier.PAID)
    assert [entry.message for entry in claims.get(timeout=30).entries] == [message]
    waiting.join()
    assert world.leased("b1")
    assert world.store.wait_for_bells([MODEL], 0.001) is None, "its token is taken"


def test_a_claim_that_waits_for_the_bell_ends_without_one(world: World) -> None:
    claim = world.store.claim(MODEL, "b1", 2, when_rung_s=0.001)
    assert not claim.entries
    assert not world.leased("b1")
    world.put(ours("a"), Tier.PAID)
    world.store.wait_for_bells([MODEL], 5.0)
    # Somebody has taken the token, and died.
    assert len(world.store.claim(MODEL, "b2", 2, when_rung_s=0.001).entries) == 1


def test_a_look_claims_where_enough_wait_and_no_deadline_is_near(world: World) -> None:
    soon = ours("a", due_in_ms=60_000)
    world.put(soon, Tier.PAID)
    world.put(ours("b", due_in_ms=90_000), Tier.FREE)
    few = world.store.claim(MODEL, "b1", 8, least=3)
    assert not few.entries
    assert few.view.depth == 2
    paused = world.store.claim(MODEL, "b1", 8, paused=frozenset({Tier.FREE.rank}), least=2)
    assert not paused.entries
    assert paused.view.depth == 1
    near = world.store.claim(MODEL, "b1", 8, least=2, calm_ms=70_000)
    assert not near.entries
    assert near.view.due_ms == read_fast_header(soon).deadline_ms
    assert not world.leased("b1")
    assert len(world.store.claim(MODEL, "b1", 8, least=2, calm_ms=30_000).entries) == 2
    assert world.leased("b1")
    # A repeat is of the lease, whoever waits.
    assert len(world.store.claim(MODEL, "b1", 8, least=2, calm_ms=30_000).entries) == 2


def test_peeking_names_the_models_that_have_something_to_claim(world: World) -> None:
    anything: frozenset[int] = frozenset()
    assert world.store.peek({"other": anything, MODEL: anything}) == set()
    world.put(ours("a"), Tier.PAID)
    assert world.store.peek({"other": anything, MODEL: anything}) == {MODEL}
    assert world.store.peek({"other": anything, MODEL: frozenset({Tier.PAID.rank})}) == set()
    assert world.store.peek({MODEL: frozenset({Tier.FREE.rank}), "other": anything}) == {MODEL}
    assert len(world.queued(Tier.PAID)) == 1


def test_peeking_sees_a_retry_once_its_pause_is_over(world: World) -> None:
    world.put(ours("a"), Tier.PAID)
    world.store.claim(MODEL, "b1", 1)
    world.store.put_aside(MODEL, "b1", [(1, PAUSE_MS)], last=True)
    assert world.store.peek({MODEL: frozenset()}) == set()
    world.end_pauses()
    assert world.store.peek({MODEL: frozenset()}) == {MODEL}

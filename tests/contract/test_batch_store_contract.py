"""The contract of a batch store, for the real one and its twin."""

from __future__ import annotations

import msgspec
import pytest

from batching.claim.lease import Verdict
from batching.claim.store import Blame, Settled
from batching.fast_header import read_fast_header
from batching.memory.store import Letter, state_of
from config.tiers import Tier
from tests.fakes.store import epoch_ms
from tests.fakes.worlds import (
    HOUR_MS,
    MODEL,
    PAUSE_MS,
    World,
    foreign,
    name_of,
    names,
    ours,
    settled,
)


def test_claims_the_oldest_first_and_leases_them(world: World) -> None:
    for i in range(5):
        world.put(ours(f"t{i}"), Tier.PAID)
    claim = world.store.claim(MODEL, "b1", 3)
    assert names(claim) == ["t0", "t1", "t2"]
    assert [each.position for each in claim.entries] == [1, 2, 3]
    assert claim.view.depths == (0, 2, 0)
    assert world.leased("b1")


def test_a_repeated_claim_is_the_same_claim(world: World) -> None:
    for i in range(4):
        world.put(ours(f"t{i}"), Tier.PAID)
    assert world.store.claim(MODEL, "b1", 2).entries == world.store.claim(MODEL, "b1", 2).entries
    assert len(world.queued(Tier.PAID)) == 2


def test_nothing_waiting_makes_no_lease(world: World) -> None:
    claim = world.store.claim(MODEL, "b1", 8)
    assert claim.entries == ()
    assert claim.view.depth == 0
    assert not world.leased("b1")


def test_looking_changes_nothing_and_tells_the_age_of_the_oldest(world: World) -> None:
    world.put(ours("a", enqueued=5_000), Tier.FREE)
    world.put(ours("b", enqueued=4_000), Tier.ENTERPRISE)
    world.put(ours("c", enqueued=3_000), Tier.ENTERPRISE)
    world.put(foreign("d"), Tier.PAID)
    for _ in range(2):
        view = world.store.look(MODEL)
        assert (view.depths, view.oldest_ms) == ((2, 1, 1), 4_000)
    assert abs(view.now_ms - epoch_ms()) < 60_000


def test_a_paused_tier_is_neither_seen_nor_claimed(world: World) -> None:
    for tier in (Tier.ENTERPRISE, Tier.PAID, Tier.FREE):
        for i in range(2):
            world.put(ours(f"{tier.value}{i}", expired=i == 0, enqueued=1_000), tier)
    paused = frozenset({Tier.ENTERPRISE.rank, Tier.FREE.rank})
    assert world.store.look(MODEL, paused).depths == (0, 2, 0)
    # The expired make room, which must not be filled from a paused tier either.
    claim = world.store.claim(MODEL, "b1", 8, paused=paused)
    assert names(claim) == ["paid0", "paid1"]
    assert claim.view.depth == 0
    assert world.store.look(MODEL).depths == (2, 0, 2)
    assert names(world.store.claim(MODEL, "b2", 8)) == ["enterprise0", "enterprise1", "free0", "free1"]


def test_a_paused_tier_keeps_its_suspects(world: World) -> None:
    world.put(ours("suspect"), Tier.ENTERPRISE)
    world.store.claim(MODEL, "b0", 1)
    world.store.give_back(MODEL, "b0", Blame.SUSPECT)
    world.put(ours("other"), Tier.PAID)
    assert names(world.store.claim(MODEL, "b1", 4, paused=frozenset({0}))) == ["other"]


def test_verdicts(world: World) -> None:
    for message in (ours("late", expired=True), ours("back"), foreign("f"), ours("good")):
        world.put(message, Tier.PAID)
    world.cancel("back")
    claim = world.store.claim(MODEL, "b1", 2)
    assert {name_of(each.message): each.verdict for each in claim.entries} == {
        "late": Verdict.EXPIRED, "back": Verdict.CANCELLED, "f": Verdict.RUN, "good": Verdict.RUN,
    }  # fmt: skip


def test_who_could_not_be_in_time_is_told_apart_and_takes_no_place(world: World) -> None:
    for message in (ours("soon", due_in_ms=HOUR_MS // 2), foreign("f"), ours("good")):
        world.put(message, Tier.PAID)
    claim = world.store.claim(MODEL, "b1", 2, margin_ms=HOUR_MS)
    assert {name_of(each.message): each.verdict for each in claim.entries} == {
        "soon": Verdict.HOPELESS, "f": Verdict.RUN, "good": Verdict.RUN,
    }  # fmt: skip


def test_the_earliest_deadline_of_the_heads_is_seen(world: World) -> None:
    assert world.store.look(MODEL).due_ms == 0
    world.put(foreign("f"), Tier.FREE)
    assert world.store.look(MODEL).due_ms == 0
    world.put(ours("later"), Tier.PAID)
    world.put(ours("soon", due_in_ms=HOUR_MS), Tier.ENTERPRISE)
    for view in (world.store.look(MODEL), world.store.claim(MODEL, "b0", 0).view):
        assert abs(view.due_ms - view.now_ms - HOUR_MS) < 60_000


def test_tracked_requests_are_started_when_claimed_and_pending_when_back(world: World) -> None:
    world.put(ours("seen"), Tier.PAID)
    world.put(ours("unseen", tracked=False), Tier.PAID)
    world.set_state("seen", "PENDING")
    for blame in (Blame.NOTHING, Blame.ATTEMPT):
        world.store.claim(MODEL, f"b{blame}", 2)
        assert world.results(["seen"]) == [state_of("seen", "STARTED")]
        world.store.give_back(MODEL, f"b{blame}", blame)
        assert world.results(["seen"]) == [state_of("seen", "PENDING")]
    assert world.results(["unseen"]) == [None]


def test_finish_stores_and_tells_each_frontend_once(world: World) -> None:
    for i in range(4):
        world.put(ours(f"t{i}"), Tier.PAID)
    world.store.claim(MODEL, "b1", 4)
    channels = ["bunch:reply:a", "bunch:reply:b", "bunch:reply:a", ""]
    outcomes = [settled(i + 1, f"t{i}", channel) for i, channel in enumerate(channels)]
    assert world.store.finish("b1", outcomes, last=True)
    told = {channel: [each["task_id"] for each in replies] for channel, replies in world.replies()}
    assert told == {"bunch:reply:a": ["t0", "t2"], "bunch:reply:b": ["t1"]}
    assert world.results([f"t{i}" for i in range(4)]) == [each.result for each in outcomes]
    assert not world.leased("b1")


def test_a_large_result_is_told_by_reference(world: World) -> None:
    world.put(ours("big"), Tier.PAID)
    world.store.claim(MODEL, "b1", 1)
    outcome = settled(1, "big", "bunch:reply:a", size=70_000)
    world.store.finish("b1", [outcome], last=True)
    assert world.replies() == [("bunch:reply:a", [{"task_id": "big", "status": "STORED"}])]
    assert world.results(["big"]) == [outcome.result]


def test_a_result_that_nobody_wants_is_not_stored(world: World) -> None:
    world.put(ours("t0"), Tier.PAID)
    world.store.claim(MODEL, "b1", 1)
    world.store.finish("b1", [Settled(1, "t0", 0, "", b"{}")], last=True)
    assert world.results(["t0"]) == [None]


def test_what_is_finished_early_does_not_come_back(world: World) -> None:
    for i in range(3):
        world.put(ours(f"t{i}"), Tier.PAID)
    world.store.claim(MODEL, "b1", 3)
    assert world.store.finish("b1", [settled(2, "t1")], last=False)
    assert world.store.give_back(MODEL, "b1", Blame.NOTHING) == 2
    assert [name_of(each) for each in world.queued(Tier.PAID)] == ["t0", "t2"]


def test_the_outcomes_of_a_lost_lease_are_dropped(world: World) -> None:
    world.put(ours("t0"), Tier.PAID)
    world.store.claim(MODEL, "b1", 1)
    assert world.store.give_back(MODEL, "b1", Blame.ATTEMPT) == 1
    assert not world.store.finish("b1", [settled(1, "t0", "bunch:reply:a")], last=True)
    assert not world.store.put_aside(MODEL, "b1", [(1, 0)], last=True)
    assert world.store.give_back(MODEL, "b1", Blame.ATTEMPT) == -1
    assert world.results(["t0"]) == [None]
    assert world.replies() == []


def test_an_outcome_is_stored_and_told_once(world: World) -> None:
    """The second call is the repeat of one whose reply was lost."""
    for i in range(2):
        world.put(ours(f"t{i}"), Tier.PAID)
    world.store.claim(MODEL, "b1", 2)
    for _ in range(2):
        assert world.store.finish("b1", [settled(1, "t0", "bunch:reply:a")], last=False)
    assert len(world.replies()) == 1
    assert world.leased("b1")


@pytest.mark.parametrize(
    ("blame", "attempt", "lost"), [(Blame.NOTHING, 0, 0), (Blame.ATTEMPT, 1, 0), (Blame.SUSPECT, 1, 1)]
)
def test_given_back_to_the_head_in_the_old_order(world: World, blame: Blame, attempt: int, lost: int) -> None:
    for i in range(4):
        world.put(ours(f"t{i}"), Tier.PAID)
    world.store.claim(MODEL, "b1", 2)
    world.store.give_back(MODEL, "b1", blame)
    back = world.queued(Tier.PAID)
    assert [name_of(each) for each in back] == ["t0", "t1", "t2", "t3"]
    stamps = [read_fast_header(each) for each in back]
    assert [(each.attempt, each.lost) for each in stamps] == [(attempt, lost)] * 2 + [(0, 0)] * 2
    # Having waited its turn once, it is held to its deadline alone.
    assert (stamps[0].limit_ms == stamps[0].deadline_ms) == (blame is not Blame.NOTHING)


def test_anybody_elses_message_counts_in_a_header_of_its_own(world: World) -> None:
    world.put(foreign("f"), Tier.FREE)
    for attempt in (1, 2, 3):
        world.store.claim(MODEL, f"b{attempt}", 1)
        world.store.give_back(MODEL, f"b{attempt}", Blame.ATTEMPT)
        (message,) = world.queued(Tier.FREE)
        assert msgspec.json.decode(message)["headers"] == {"bunch_attempt": attempt, "lang": "py", "empty": []}


@pytest.mark.parametrize("space", [b"", b" "])
def test_counts_in_messages_of_any_celery_client(world: World, space: bytes) -> None:
    """Not every language's JSON has a space behind the colon."""
    world.put(b'{"body":"f","headers":%s{"lang":"js"}}' % space, Tier.FREE)
    world.store.claim(MODEL, "b1", 1)
    world.store.give_back(MODEL, "b1", Blame.SUSPECT)
    assert msgspec.json.decode(world.queued(Tier.FREE)[0])["headers"] == {"bunch_attempt": 1, "lang": "js"}


def test_counts_in_messages_without_headers(world: World) -> None:
    """Protocol 1."""
    world.put(b'{"body": "f", "headers": {}, "properties": {}}', Tier.FREE)
    for attempt in (1, 2):
        world.store.claim(MODEL, f"b{attempt}", 1)
        world.store.give_back(MODEL, f"b{attempt}", Blame.ATTEMPT)
        assert msgspec.json.decode(world.queued(Tier.FREE)[0])["headers"] == {"bunch_attempt": attempt}


@pytest.mark.parametrize(
    "message",
    [
        b'{"body": "f", "headers": null, "properties": {}}',
        b'{"body": "f", "headers":[], "properties": {}}',
        b' {"properties": {}, "body": "f"}',
        b'{"headers" : {"lang": "php"}, "body": "f"}',
    ],
)
def test_counts_in_messages_whose_headers_are_not_there(world: World, message: bytes) -> None:
    """Without a count, what kills each executor that it meets would never be given up."""
    world.put(message, Tier.FREE)
    for attempt in (1, 2, 3):
        world.store.claim(MODEL, f"b{attempt}", 1)
        world.store.give_back(MODEL, f"b{attempt}", Blame.SUSPECT)
        (queued,) = world.queued(Tier.FREE)
        assert b'"headers": {"bunch_attempt": %d}' % attempt in queued
        # Of a name that comes twice JSON's readers take the last.
        assert {"headers": None, **msgspec.json.decode(message)} == {
            **msgspec.json.decode(queued),
            "headers": msgspec.json.decode(message).get("headers"),
        }


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00\xff",
        b'{"headers":{"bunch":"1;',
        b'{"headers":{"bunch":"1;soon","x":1},"body":""}',
        b'{"headers":{"bunch":"1;0000000000000;000000000000x;0000000000000;00;0;0;000060000;id"}}',
        b'{"headers":{"bunch":"1;0000000000000;0000000000000;0000000000000;00;0;0;000060000;"}}',
        b'{"headers": {"bunch_attempt": 1}}',
        b'{"headers": {"bunch_attempt": "many", "x": 1}}',
        b'{"headers": {"bunch_attempt": -1, "x": 1}}',
        b'{"headers": {"bunch_attempt": 99999999999999999999, "x": 1}}',
    ],
)
@pytest.mark.parametrize("blame", list(Blame))
def test_no_message_however_broken_blocks_its_queue(world: World, message: bytes, blame: Blame) -> None:
    world.put(message, Tier.PAID)
    world.put(ours("good"), Tier.PAID)
    assert world.store.look(MODEL).depth == 2
    first = world.store.claim(MODEL, "b1", 2, 2)
    assert world.store.give_back(MODEL, "b1", blame) == len(first.entries)
    seen: list[bytes] = []
    for i in range(2, 5):
        claim = world.store.claim(MODEL, f"b{i}", 2, 2)
        seen += [each.message for each in claim.entries]
        world.store.put_aside(MODEL, f"b{i}", [(each.position, PAUSE_MS) for each in claim.entries], last=True)
    assert len(seen) == 2
    assert read_fast_header(seen[0]) is None
    assert name_of(seen[1]) == "good"


def test_put_aside_until_its_pause_is_over(world: World) -> None:
    for task_id in ("a", "b"):
        world.put(ours(task_id), Tier.PAID)
    world.store.claim(MODEL, "b1", 2)
    for _ in range(2):
        assert world.store.put_aside(MODEL, "b1", [(1, PAUSE_MS)], last=False)
    assert world.store.finish("b1", [settled(2, "b")], last=True)
    assert world.store.look(MODEL).depth == 0
    world.put(ours("c"), Tier.PAID)
    world.end_pauses()
    claim = world.store.claim(MODEL, "b2", 2)
    assert names(claim) == ["a", "c"]
    assert [read_fast_header(each.message).attempt for each in claim.entries] == [1, 0]


def test_suspects_run_among_themselves_and_at_last_alone(world: World) -> None:
    for i in range(9):
        world.put(ours(f"t{i}"), Tier.PAID)
    world.store.claim(MODEL, "b0", 9)
    world.store.give_back(MODEL, "b0", Blame.SUSPECT)
    world.put(ours("other"), Tier.ENTERPRISE)
    first = world.store.claim(MODEL, "b1", 9, 3)
    assert names(first) == ["t0", "t1", "t2"]
    world.store.give_back(MODEL, "b1", Blame.SUSPECT)
    assert [names(world.store.claim(MODEL, f"a{i}", 9, 3)) for i in range(3)] == [["t0"], ["t1"], ["t2"]]
    assert names(world.store.claim(MODEL, "r1", 9, 3)) == ["t3", "t4", "t5"]


def test_a_dead_letter_keeps_the_message_as_it_was_queued(world: World) -> None:
    message = ours("t0")
    world.put(message, Tier.FREE)
    world.put(ours("t1"), Tier.FREE)
    world.store.claim(MODEL, "b1", 2)
    for _ in range(2):
        # The second time is the repeat of a call whose reply was lost.
        world.store.finish("b1", [settled(1, "t0", letter=b'{"reason":"x"}')], last=False)
    assert world.letters() == {"t0": Letter(Tier.FREE.rank, message, b'{"reason":"x"}')}

"""The record of requests in Redis: found by either id, an hour of all, a day of failures, never beyond its ceiling."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from redis import Redis

import tasks.observability.batch_log
from config.keys import Shard
from tasks.observability.batch_log import HOUR_MS, UNSETTLED, BatchLog, BatchRecord, Member
from tasks.observability.explain import explain, explain_recorded, why_unknown
from tasks.protocol.ids import made_at_ms, new_id, owned_id
from tests.shards import places_of

KEYS = Shard()
MIB = 1_048_576


def batch(*members: Member, name: str = "b1", at_ms: int | None = None, why: str = "") -> BatchRecord:
    at_ms = int(time.time() * 1000) if at_ms is None else at_ms
    return BatchRecord(
        id=name, model="m", version="1", worker="w", executor="m/0", reason="full", claimed_ms=at_ms,
        wait_ms=1.0, turn_ms=30.0, compute_ms=20.0, reply_ms=0.5, why=why, members=members,
    )  # fmt: skip


def id_of(age_ms: float) -> str:
    """As our own ids were that long ago."""
    step = (int(time.time() * 1000 - age_ms) // 4000) & 0xFFFFF
    return f"{step:05x}{new_id()[5:]}"


def dated(redis: Redis, which: str, age_ms: int) -> None:
    """All that is in a record, as if it had been written that long ago."""
    name = KEYS.record(which)
    rows = [fields for _, fields in redis.xrange(name)]
    redis.delete(name)
    for n, fields in enumerate(rows):
        redis.xadd(name, fields, id=f"{int(time.time() * 1000) - age_ms}-{n + 1}")


def test_an_answer_whose_result_is_gone_is_explained_by_either_id(redis: Redis) -> None:
    task_id, other = new_id(), new_id()
    tried = batch(Member(task_id, 1, 1, request_id="case-7"), name="b0", at_ms=1000, why="the process was killed")
    BatchLog(redis).write([tried, batch(Member(task_id, 1, 2, 3, 17, "OK", "case-7"), Member(other, 2, 1, 3, 9, "OK"))])
    by_task, by_request = explain(places_of(redis), ["m"], task_id), explain(places_of(redis), ["m"], "case-7")
    assert by_task is not None
    assert by_request == by_task | {"request_id": "case-7"}
    assert (by_task["status"], by_task["model"], by_task["tier"], by_task["attempt"]) == ("completed", "m", "paid", 2)
    assert {each["stage"]: each["ms"] for each in by_task["stages"]} == {
        "admission": 3, "queue": 17, "batch_wait": 1.0, "transfer": 10.0, "compute": 20.0, "reply": 0.5,
    }  # fmt: skip
    assert [each["task_id"] for each in by_task["batch"]["neighbours"]] == [other]
    assert [(each["attempt"], each["ended"]) for each in by_task["attempts"]] == [(1, "the process was killed")]


def test_an_id_that_a_caller_gave_twice_means_its_newest_request(redis: Redis) -> None:
    older, newer = new_id(), new_id()
    BatchLog(redis).write([batch(Member(older, 1, 1, 0, 0, "OK", "same"), at_ms=1000)])
    BatchLog(redis).write([batch(Member(newer, 1, 1, 0, 0, "OK", "same"), at_ms=2000)])
    about = explain(places_of(redis), ["m"], "same")
    assert about is not None
    assert (about["task_id"], about["attempts"]) == (newer, [])


def test_owners_are_told_of_their_own_alone(redis: Redis) -> None:
    hers, his = owned_id(new_id(), "alice"), owned_id(new_id(), "bob")
    members = [Member(each, 1, 1, 0, 5, "OK", "same-name") for each in (hers, his)]
    BatchLog(redis).write([batch(*members)])
    for owner, own, others in (("alice", hers, his), ("bob", his, hers)):
        assert (explain_recorded(redis, "same-name", owner) or {})["task_id"] == own
        assert (explain_recorded(redis, own, owner) or {})["status"] == "completed"
        assert explain_recorded(redis, others, owner) is None
    assert explain_recorded(redis, "same-name", "carol") is None


def test_what_failed_is_known_for_a_day_and_the_rest_for_an_hour(redis: Redis) -> None:
    good, bad, refused = (id_of(3 * HOUR_MS) for _ in range(3))
    at_ms = int(time.time() * 1000) - 3 * HOUR_MS
    failed = Member(bad, 0, 3, 2, 30, "INFERENCE_FAILED", error="ValueError: the third attempt")
    door = BatchRecord(model="m", why="refused at the door (pressure)", claimed_ms=at_ms, members=[
        Member(refused, 2, 0, code="SERVICE_OVERLOADED"),
    ])  # fmt: skip
    BatchLog(redis).write([batch(Member(good, 1, 1, 0, 0, "OK"), failed, at_ms=at_ms), door])
    for which in ("all", "failed"):
        dated(redis, which, 3 * HOUR_MS)
    # The next write drops what is too old.
    BatchLog(redis).write([batch(Member(new_id(), 1, 1, 0, 0, "OK"), name="b2")])
    assert redis.xlen(KEYS.record("all")) == 1
    about = explain(places_of(redis), ["m"], bad)
    assert about is not None
    assert (about["status"], about["error"]["code"]) == ("failed", "INFERENCE_FAILED")
    assert (about["error"]["type"], about["error"]["message"]) == ("ValueError", "the third attempt")
    for name in (good, refused):
        assert explain(places_of(redis), ["m"], name) is None
        assert "older than the batch log reaches: an hour" in why_unknown(redis, name)


def test_beyond_its_ceiling_the_oldest_go_and_whoever_asks_is_told_how_far_it_reaches(redis: Redis) -> None:
    batch_log = BatchLog(redis, max_bytes=MIB)
    names = [id_of(40 * 60_000) for _ in range(64)]
    batch_log.write([batch(*(Member(each, 1, 1, 0, 0, "OK") for each in names))])
    dated(redis, "all", 40 * 60_000)
    recent = [[new_id() for _ in range(64)] for _ in range(900)]
    for n, ids in enumerate(recent):
        batch_log.write([batch(*(Member(each, 1, 1, 0, 3, "OK") for each in ids), name=f"b{n}")])
    assert explain(places_of(redis), ["m"], names[0]) is None
    assert explain(places_of(redis), ["m"], recent[-1][0]) is not None
    told = why_unknown(redis, names[0])
    assert "older than the batch log reaches" in told
    assert "at this rate (BUNCH_EXPLAIN_MAX_BYTES)" in told
    assert int(redis.hget(KEYS.record_size("all"), "bytes") or 0) <= MIB * 3 // 4
    # What Redis itself takes for it: the ceiling, and less than a tenth.
    assert redis.memory_usage(KEYS.record("all"), samples=0) < 1.1 * MIB * 3 / 4
    # A request that nobody has heard of is not said to be too old.
    assert "never issued" in why_unknown(redis, id_of(-8_000))
    assert "never issued" in why_unknown(redis, "case-0")


def test_one_request_is_found_without_reading_it_all(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_log = BatchLog(redis)
    batch_log.write([batch(*(Member(new_id(), 1, 1, 0, 3, "OK") for _ in range(64)))])
    dated(redis, "all", 20 * 60_000)
    wanted = new_id()
    batch_log.write([batch(Member(wanted, 1, 1, 0, 3, "OK"))])
    read: list[bytes] = []
    real: Callable[[bytes], bytes] = tasks.observability.batch_log.zlib.decompress

    def counted(data: bytes) -> bytes:
        read.append(data)
        return real(data)

    monkeypatch.setattr("tasks.observability.batch_log.zlib.decompress", counted)
    assert [record.id for record, _ in batch_log.find(wanted)] == ["b1"]
    assert len(read) == 1


def test_what_was_not_settled_has_no_end(redis: Redis) -> None:
    task_id = new_id()
    BatchLog(redis).write([batch(Member(task_id, 1, 1), why="its worker died")])
    about = explain(places_of(redis), ["m"], task_id)
    assert about is not None
    assert (about["status"], len(about["attempts"])) == ("unknown", 1)
    assert explain_recorded(redis, task_id) is None
    assert Member("x", 0, 1).code == UNSETTLED


def test_an_id_says_when_it_was_made() -> None:
    for age_ms in (0, 60_000, 40 * 24 * HOUR_MS):
        name = id_of(age_ms)
        # Not before: a step of its clock may lie between.
        now_ms = time.time() * 1000
        made = made_at_ms(name, now_ms)
        assert made is not None
        assert 0 <= now_ms - age_ms - made < 8000
    assert made_at_ms("5f0c4d0e-6f5a-4b8e-9d1c-2b3a4c5d6e7f", now_ms) is None
    assert made_at_ms("case-7", now_ms) is None

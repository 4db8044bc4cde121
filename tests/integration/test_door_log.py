"""Requests that a frontend refuses or answers by itself are in the record, too."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from config.tiers import Tier
from tasks.client.submission import Submission
from tasks.errors import BackendUnavailable, DeadlineExceeded, ServiceOverloaded
from tasks.observability.batch_log import BatchLog
from tasks.observability.explain import explain
from tasks.protocol.caller import ANYBODY
from tasks.protocol.ids import new_id
from tasks.protocol.outgoing import Outgoing
from tests.shards import places_of
from webapp.observability.door_log import ANSWERED, DoorRecord
from webapp.request import HttpRequest


def call(request_id: str = "") -> HttpRequest:
    return HttpRequest({"HTTP_X_REQUEST_ID": request_id} if request_id else {})


def asked(tier: Tier = Tier.PAID, request_id: str = "") -> Submission:
    return Submission("m", ANYBODY[tier], b"1", 1.0, request_id=request_id)


@pytest.fixture
def door(redis: Redis) -> DoorRecord:
    return DoorRecord(BatchLog(redis))


def test_a_refusal_is_explained_by_either_id(redis: Redis, door: DoorRecord) -> None:
    named, nameless = new_id(), new_id()
    door.note(call("case-9"), named, asked(Tier.FREE), ServiceOverloaded("too much waits", 2.0, "pressure"))
    door.note(call(nameless), nameless, asked(), BackendUnavailable("the queue is not reachable"))
    door.flush()
    for name, task_id, tier, code, where in (
        ("case-9", named, "free", "SERVICE_OVERLOADED", "refused at the door (pressure)"),
        (named, named, "free", "SERVICE_OVERLOADED", "refused at the door (pressure)"),
        (nameless, nameless, "paid", "BACKEND_UNAVAILABLE", "refused at the door"),
    ):
        about = explain(places_of(redis), ["m"], name)
        assert about is not None
        assert (about["task_id"], about["status"], about["tier"]) == (task_id, "failed", tier)
        assert (about["error"]["code"], about["where"]) == (code, where)
        assert (about["batch"], about["stages"]) == (None, [])


def test_an_answer_from_the_cache_is_explained(redis: Redis, door: DoorRecord) -> None:
    out = Outgoing(new_id(), asked(request_id="case-10"), "bunch.m.paid", 1, 1, 1)
    door.answered(out)
    door.flush()
    about = explain(places_of(redis), ["m"], "case-10")
    assert about is not None
    assert (about["status"], about["where"], about["error"]) == ("completed", ANSWERED, None)


def test_what_a_worker_tells_of_is_not_told_twice(redis: Redis, door: DoorRecord) -> None:
    task_id = new_id()
    door.note(call(), task_id, asked(), DeadlineExceeded("the request was not answered before its deadline"))
    door.flush()
    assert explain(places_of(redis), ["m"], task_id) is None


def test_while_redis_is_away_it_is_kept_and_written_later(
    redis: Redis, door: DoorRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = new_id()
    door.note(call(), task_id, asked(), BackendUnavailable("away"))

    def away(records: object) -> None:
        list(records)  # type: ignore[call-overload]
        raise RedisConnectionError("away")

    with monkeypatch.context() as patch:
        patch.setattr(door._batch_log, "write", away)
        with pytest.raises(RedisConnectionError):
            door.flush()
    door.flush()
    assert explain(places_of(redis), ["m"], task_id) is not None

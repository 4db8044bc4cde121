"""From the submit script's answer to what a caller reads."""

from __future__ import annotations

import json
import pickle

import pytest

from config.settings import Settings
from config.tiers import Tier
from tasks.client.admission_codes import Status, refusals
from tasks.client.submission import Submission
from tasks.errors import RateLimited, Refused, ServiceOverloaded
from tasks.observability.metrics import SHED
from tasks.protocol.caller import ANYBODY
from tasks.protocol.outgoing import Outgoing
from tasks.protocol.quota import Quota
from webapp.errors import bunch_error_answer
from webapp.observability.metrics import RequestTallies

QUOTA = Quota.of("key-1", 600, 30)


def out(quota: Quota | None = None) -> Outgoing:
    submission = Submission("m", ANYBODY[Tier.FREE], b"1", 1.0)
    return Outgoing("id", submission, "bunch.m.free", 1000, 1000, 1000, quota=quota)


def test_each_refusal_finds_its_request() -> None:
    told = list(refusals(b"0402\n1500;0;0,20;0;3000", [out(), out(), out(), out(QUOTA)]))
    assert told[0] is told[2] is None
    pressure, rate = told[1], told[3]
    assert isinstance(pressure, ServiceOverloaded)
    assert (pressure.reason, pressure.retry_after_s, pressure.limits) == ("pressure", 1.5, None)
    assert isinstance(rate, RateLimited)
    assert (rate.reason, rate.retry_after_s, rate.limits) == ("rate", 0.02, (600, 30, 0, 3.0))
    assert "600" in str(rate)


def test_nothing_refused() -> None:
    assert list(refusals(b"00", [out(), out()])) == [None, None]


@pytest.mark.parametrize(
    ("status", "kind", "http"),
    [
        (Status.QUEUE_FULL, "queue_full", 503),
        (Status.RATE, "rate", 429),
        (Status.MEMORY, "memory", 429),
        (Status.PRESSURE, "pressure", 503),
        (Status.SHARE, "share", 429),
        (Status.DEADLINE, "deadline", 503),
    ],
)
def test_every_reason_has_a_status_and_a_time(status: Status, kind: str, http: int) -> None:
    (error,) = refusals(status.code.encode() + b"\n2400;7;1200", [out(QUOTA)])
    assert isinstance(error, Refused)
    answer = bunch_error_answer(error, "r1")
    assert (error.reason, answer.status) == (kind, http)
    assert json.loads(answer.body) | {"message": ""} == {
        "error": error.code, "message": "", "request_id": "r1", "retry_after_ms": 2400,
    }  # fmt: skip
    assert dict(answer.headers) == {
        "Retry-After": "3",
        "RateLimit-Policy": '"minute";q=600;w=60, "burst";q=30;w=3',
        "RateLimit": '"burst";r=7;t=2',
    }


def test_without_a_key_there_is_no_limit_to_tell_of() -> None:
    (error,) = refusals(b"4\n10;0;0", [out()])
    assert error is not None
    assert dict(bunch_error_answer(error, "r1").headers) == {"Retry-After": "1"}


def test_an_error_can_be_built_again_from_its_arguments() -> None:
    """As Celery and pickle do it."""
    error = RateLimited("slow down", 2.5, "rate", (600, 30, 0, 3.0))
    for again in (RateLimited(*error.args), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own
        assert (str(again), again.retry_after_s, again.reason, again.limits) == ("slow down", 2.5, "rate", error.limits)


def test_refusals_are_counted_by_tier_and_reason() -> None:
    def shed(reason: str) -> float:
        return SHED.labels("free", reason)._value.get()

    before = shed("pressure")
    tallies = RequestTallies(Settings())
    tallies.count("m", Tier.FREE, "SERVICE_OVERLOADED", 0.001, "pressure")
    tallies.count("m", Tier.FREE, "OK", 0.001)
    assert shed("pressure") == before + 1


def test_tags_are_eight_digits_and_never_those_of_no_key() -> None:
    tags = {Quota.of(f"key-{number}", 60, 1).tag for number in range(1000)}
    assert len(tags) == 1000
    assert all(len(tag) == 8 and set(tag) <= set("0123456789abcdef") and tag != "00000000" for tag in tags)

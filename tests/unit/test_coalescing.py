"""Requests that were settled beside a batch, as the worker's observers see them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from batching.claim.store import Settled
from batching.coalescing import others_of
from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Cancelled, Expired, Failed, Ok, Outcome, Request
from config.tiers import Tier
from tasks.observability import metrics
from tasks.observability.batch_log import BatchRecord
from tasks.observers.batch_log import BatchLogObserver
from tasks.observers.metrics import WorkerTelemetry
from tasks.protocol.results import CeleryCodec

INFO = BatchInfo("b1", "asked", "1", 1, Reason.IDLE, claimed_ms=1200, compute_s=0.01)
ROWS = (b'1;s;2;1100;60000;id-2;"acme"', b'1;x;1;1000;1000;id-3;""', b'1;c;0;1150;1000;id-4;"a;b"')


def first(**about: object) -> Request:
    return Request("id-1", Tier.PAID, 1, b'{"q":1}', b"{}", **{"question": "0f", "keep_ms": 1000, **about})  # type: ignore[arg-type]


def test_rows_become_requests_with_outcomes() -> None:
    outcome = Ok(b"1")
    others, shared = others_of(ROWS, [(first(), outcome)])
    assert shared == 1
    assert [each for _, each in others] == [outcome, Expired(), Cancelled()]
    two, three, four = (request for request, _ in others)
    assert (two.id, two.tier, two.enqueued_ms, two.result_ttl_ms, two.owner) == (
        "id-2",
        Tier.FREE,
        1100,
        60_000,
        "acme",
    )
    assert (three.tier, four.tier, four.owner) == (Tier.PAID, Tier.ENTERPRISE, "a;b")
    assert two.input == b'{"q":1}'
    assert len({each.position for each in (two, three, four)}) == 3
    assert all(each.position < 0 for each in (two, three, four))


@pytest.mark.parametrize(
    ("outcome", "shared", "attempts"),
    [
        (Ok(b"1"), True, 2),
        (Failed("bad"), True, 2),
        (Failed("busy", retryable=True), False, 2),
        (Expired(), False, 1),
        (Cancelled(), False, 1),
    ],
)
def test_who_shares_an_outcome_and_who_takes_its_place(outcome: Outcome, shared: bool, attempts: int) -> None:
    settled: Settled = CeleryCodec(1000).encode(first(attempt=2, lost=1), outcome, INFO)
    asked = settled.asked
    assert asked is not None
    assert (asked.shared, asked.attempts, asked.lost) == (shared, attempts, 1)
    assert asked.keep_ms == (1000 if isinstance(outcome, Ok) else 0)
    assert b',"task_id":"id-1","bunch":{' in settled.result
    assert CeleryCodec(1000).encode(first(question=""), outcome, INFO).asked is None


def test_they_are_counted_as_what_they_are() -> None:
    def counted() -> list[float]:
        children = (
            metrics.COLLAPSED.labels("asked"), metrics.DEAD_LETTERED.labels("asked", "error"),
            metrics.EXPIRED.labels("asked", "paid"), metrics.CANCELLED.labels("asked"),
        )  # fmt: skip
        return [each._value.get() for each in children]

    before = counted()
    pair = (first(), Failed("bad"))
    others, shared = others_of(ROWS, [pair])
    telemetry = WorkerTelemetry(lambda: None)
    telemetry.finished([pair, *others], replace(INFO, collapsed=shared))
    # One letter, of the one that was computed.
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, 1, 1, 1]


def test_the_batchs_record_is_of_those_who_were_in_it() -> None:
    class Written:
        def __init__(self) -> None:
            self.records: list[BatchRecord] = []

        def write(self, noted: list[BatchRecord]) -> None:
            self.records += noted

    written = Written()
    batch_log = BatchLogObserver(written, lambda: "w")  # type: ignore[arg-type]
    pair = (first(), Ok(b"1"))
    batch_log.claimed([pair[0]], INFO)
    batch_log.finished([pair, *others_of(ROWS, [pair])[0]], INFO)
    batch_log.flush()
    (record,) = written.records
    assert [member.id for member in record.members] == ["id-1"]
    assert [member.id for member in record.joined] == [each.id for each, _ in others_of(ROWS, [pair])[0]]

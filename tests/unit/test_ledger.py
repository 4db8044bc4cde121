"""The ledger's entries of a worker and of a frontend."""

from __future__ import annotations

import pytest

from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Cancelled, Expired, Failed, Ok, Outcome, Rejected, Request
from config.tiers import Tier
from tasks.accounts import ledger
from tasks.accounts.ledger import LedgerBuffer, LedgerRow, RowGroup, bounded_id
from tasks.client.submission import Submission
from tasks.errors import DeadlineExceeded, InputRejected, ServiceOverloaded
from tasks.observability import metrics
from tasks.observers.ledger import LedgerObserver
from tasks.protocol.caller import Caller
from tasks.protocol.outgoing import Outgoing
from webapp.observability.door_ledger import DoorLedger


class Stream:
    """In memory; `away` raises what Redis does."""

    def __init__(self) -> None:
        self.rows: list[LedgerRow] = []
        self.entries = 0
        self.away = False

    def add(self, groups: list[RowGroup]) -> bool:
        if self.away:
            from redis.exceptions import ConnectionError as RedisConnectionError

            raise RedisConnectionError
        self.rows += [LedgerRow._make(row) for group in groups for row in group.rows()]
        self.entries += 1
        return True


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def buffer(stream: Stream) -> LedgerBuffer:
    return LedgerBuffer(stream)  # type: ignore[arg-type]


def request(number: int = 1, **others: object) -> Request:
    fields: dict[str, object] = {"id": f"id-{number}", "tier": Tier.PAID, "position": number, "input": b"1"}
    return Request(parameters=b"{}", **({"enqueued_ms": 1000, "owner": "acme"} | fields | others))  # type: ignore[arg-type]


INFO = BatchInfo("b1", "echo", "1", 1, Reason.IDLE, claimed_ms=1200, compute_s=0.01)


@pytest.mark.parametrize(
    ("outcome", "status", "error"),
    [
        (Ok(b"1"), "completed", None),
        (Rejected("no"), "failed", "INPUT_REJECTED"),
        (Rejected("no", "InvalidInput"), "failed", "INVALID_INPUT"),
        (Failed("broke"), "failed", "INFERENCE_FAILED"),
        (Expired(), "failed", "DEADLINE_EXCEEDED"),
        (Cancelled(), "cancelled", None),
    ],
)
def test_a_row_for_each_outcome(
    stream: Stream, buffer: LedgerBuffer, outcome: Outcome, status: str, error: str | None
) -> None:
    now = 10.0
    observer = LedgerObserver(buffer, clock=lambda: now)
    observer.claimed([request()], INFO)
    now = 10.3
    observer.finished([(request(attempt=2), outcome)], INFO)
    observer.stop()
    assert stream.rows == [LedgerRow("id-1", "acme", "paid", "echo", status, 1000, 1500, 500, 2, error)]


def test_what_never_reached_the_model_had_no_attempt(stream: Stream, buffer: LedgerBuffer) -> None:
    observer = LedgerObserver(buffer)
    observer.finished([(request(), Expired())], BatchInfo("b", "echo", "1", 1, Reason.IDLE, 1200))
    observer.stop()
    assert stream.rows[0].attempts == 0


def test_rows_travel_together(stream: Stream, buffer: LedgerBuffer) -> None:
    observer = LedgerObserver(buffer)
    for start in range(0, 1000, 100):
        observer.finished([(request(number), Ok(b"1")) for number in range(start, start + 100)], INFO)
    buffer.flush()
    assert [row.id for row in stream.rows] == [f"id-{number}" for number in range(1000)]
    assert stream.entries == 1000 / ledger.ROWS_AN_ENTRY


def test_an_outage_of_redis_is_waited_for(stream: Stream, buffer: LedgerBuffer) -> None:
    observer = LedgerObserver(buffer)
    stream.away = True
    observer.finished([(request(number), Ok(b"1")) for number in range(3)], INFO)
    buffer.flush()
    stream.away = False
    observer.finished([(request(3), Ok(b"1"))], INFO)
    buffer.flush()
    assert [row.id for row in stream.rows] == ["id-0", "id-1", "id-2", "id-3"]


def test_but_not_for_ever(buffer: LedgerBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_BUFFERED", 4)
    dropped = metrics.LEDGER_DROPPED.labels("redis_away")
    before = dropped._value.get()
    for size in (3, 2, 1):
        LedgerObserver(buffer).finished([(request(number), Ok(b"1")) for number in range(size)], INFO)
    assert len(buffer) == 4
    assert dropped._value.get() - before == 2


def test_what_ended_together_but_not_alike_is_told_apart(stream: Stream, buffer: LedgerBuffer) -> None:
    settled: list[tuple[Request, Outcome]] = [
        (request(1), Ok(b"1")),
        (request(2, owner="other", enqueued_ms=1100), Ok(b"1")),
        (request(3, tier=Tier.FREE), Ok(b"1")),
        (request(4, attempt=2), Ok(b"1")),
        (request(5), Rejected("no")),
        (request(6, enqueued_ms=1150), Ok(b"1")),
        (request(7, enqueued_ms=0), Ok(b"1")),
        (request(8, enqueued_ms=2000), Ok(b"1")),
        (request(9, client_id="laptop"), Ok(b"1")),
    ]
    LedgerObserver(buffer).finished(settled, INFO)
    buffer.flush()
    rows = {row.id: row for row in stream.rows}
    assert {(row.model, row.completed_ms) for row in rows.values()} == {("echo", 1200)}
    assert [(rows[f"id-{n}"].created_ms, rows[f"id-{n}"].latency_ms) for n in range(1, 9)] == [
        *((1000, 200), (1100, 100), (1000, 200), (1000, 200), (1000, 200), (1150, 50)),
        # Not queued by us; by a clock that is ahead.
        *((1200, 0), (2000, 0)),
    ]
    assert [n for n in range(1, 9) if rows[f"id-{n}"].owner != "acme"] == [2]
    assert [n for n in range(1, 9) if rows[f"id-{n}"].tier != "paid"] == [3]
    assert [n for n in range(1, 9) if rows[f"id-{n}"].attempts != 1] == [4]
    assert [n for n in range(1, 9) if rows[f"id-{n}"].error] == [5]
    assert [row.client_id for row in rows.values() if row.client_id] == [rows["id-9"].client_id] == ["laptop"]


def test_ids_of_celery_clients_are_cut_to_what_fits() -> None:
    assert bounded_id("a\0" * 100) == "a" * 32


def test_a_frontend_notes_what_was_refused_at_the_door(stream: Stream, buffer: LedgerBuffer) -> None:
    refusals = DoorLedger(buffer)
    refused = Submission("echo", Caller("key", "acme", Tier.FREE), b"1", 1.0, client_id="laptop")
    for error in (ServiceOverloaded("full"), InputRejected("no"), DeadlineExceeded("late")):
        refusals.note(refused, error, 0.002)
    buffer.flush()
    (row,) = stream.rows
    assert (row.owner, row.tier, row.status, row.error, row.attempts) == (
        *("acme", "free", "refused", "SERVICE_OVERLOADED", 0),
    )
    assert row.client_id == "laptop"
    assert row.completed_ms - row.created_ms == row.latency_ms == 2


def test_an_answer_from_the_cache_is_a_request_that_took_no_attempt(stream: Stream, buffer: LedgerBuffer) -> None:
    out = Outgoing("id", Submission("echo", Caller("key", "acme", Tier.FREE), b"1", 1.0), "bunch.echo.free", 1, 1, 1)
    DoorLedger(buffer).answered(out)
    buffer.flush()
    (row,) = stream.rows
    assert (row.id, row.owner, row.tier, row.model, row.status) == ("id", "acme", "free", "echo", "completed")
    assert (row.latency_ms, row.attempts, row.error) == (0, 0, None)

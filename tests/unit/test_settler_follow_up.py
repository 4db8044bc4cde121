"""The tasks that follow after a task: for whom they are sent, when, and for whom not."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pytest
from celery import Celery

from batching.claim.settler import Settler
from batching.claim.store import Settled
from batching.coalescing import Finished
from batching.policy import Reason, RetryPolicy
from batching.ports import BatchInfo, NullObserver
from batching.request import Ok, Outcome, Request
from config.tiers import Tier
from tasks.protocol.results import CeleryCodec
from tests.fakes.messages import celery_message
from workers.celery.canvas import CanvasFollowUp

INFO = BatchInfo("b", "m", "1", 3, Reason.FULL, 0, compute_s=0.1)


class Store:
    """Writes down what happens, in order. `lease` is how many calls it lasts."""

    def __init__(self, log: list[str], lease: int = 99) -> None:
        self._log = log
        self._lease = lease

    def finish(self, batch_id: str, outcomes: Sequence[Settled], *, last: bool) -> Finished:
        self._lease -= 1
        if self._lease < 0:
            return Finished(False)
        self._log += [f"stored {each.task_id}" for each in outcomes]
        if last:
            self._log.append("lease dropped")
        return Finished(True)


class FollowUp:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def follow(self, request: Request, outcome: Outcome) -> None:
        self._log.append(f"sent after {request.id}")


def settle(log: list[str], *requests: Request, lease: int = 99) -> None:
    store = Store(log, lease)
    settler = Settler(
        "m/0", "m", store, CeleryCodec(1000), NullObserver(), RetryPolicy(3), FollowUp(log)  # type: ignore[arg-type]
    )  # fmt: skip
    settler.settle([(each, Ok(b"1")) for each in requests], INFO, last=True)


def request(name: str, *, canvas: bool) -> Request:
    return Request(name, Tier.PAID, 1, b"1", b"{}", result_ttl_ms=1000, canvas=b"{}" if canvas else b"")


def test_neighbours_are_answered_before_anything_is_sent() -> None:
    log: list[str] = []
    settle(log, request("a", canvas=True), request("b", canvas=False))
    assert log == ["stored b", "sent after a", "stored a", "lease dropped"]


def test_a_batch_without_any_is_stored_in_one_call() -> None:
    log: list[str] = []
    settle(log, request("a", canvas=False), request("b", canvas=False), lease=1)
    assert log == ["stored a", "stored b", "lease dropped"]


@pytest.mark.parametrize("neighbours", [0, 2])
def test_nothing_is_sent_for_a_lease_that_is_lost(neighbours: int) -> None:
    log: list[str] = []
    settle(log, request("a", canvas=True), *(request(f"n{n}", canvas=False) for n in range(neighbours)), lease=0)
    assert log == []


def test_what_follows_after_an_output_of_bytes_gets_base64(monkeypatch: pytest.MonkeyPatch) -> None:
    app, seen = Celery(broker="memory://", backend="cache+memory://", set_as_current=False), []
    monkeypatch.setattr(app.backend, "mark_as_done", lambda task_id, value, **about: seen.append(value))
    canvas = request("a", canvas=True)
    canvas.canvas = celery_message(("x",), task_id="a")
    CanvasFollowUp(app).follow(canvas, Ok(b"\0" * 40_000, raw=True))
    assert seen == [base64.b64encode(b"\0" * 40_000).decode()]

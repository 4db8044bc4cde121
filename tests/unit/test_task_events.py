"""Task events: whole requests or none, one message a batch, failures always, and nothing while nobody listens."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Expired, Failed, Ok, Outcome, Request
from config.tiers import Tier
from tasks.observers.task_events import SHOWN_BYTES, EventSampler, TaskEvents

SHORT = 1024


class Dispatcher:
    """As much of Celery's as is used: a buffer for the group `task`, and what each flush carried."""

    def __init__(self) -> None:
        self.enabled = True
        self.groups: set[str] = set()
        self.buffer_group = frozenset({"task"})
        self.buffer_limit: float = 24
        self.on_send_buffered: Any = lambda: None
        self.flushed: list[list[dict[str, Any]]] = []
        self._buffer: list[dict[str, Any]] = []

    def send(self, kind: str, **fields: Any) -> None:
        assert "task" in self.buffer_group
        self._buffer.append({"type": kind, **fields})
        if len(self._buffer) >= self.buffer_limit:
            self.flush()

    def flush(self, errors: bool = True) -> None:
        if self._buffer:
            self.flushed.append(self._buffer)
            self._buffer = []

    def kinds(self) -> dict[str, list[str]]:
        kinds: dict[str, list[str]] = {}
        for event in (each for flush in self.flushed for each in flush):
            kinds.setdefault(event["uuid"], []).append(event["type"].removeprefix("task-"))
        return kinds


def requests(count: int, name: str = "t", **fields: Any) -> list[Request]:
    return [Request(f"{name}{n}", Tier.PAID, n + 1, b'"in"', b"{}", **fields) for n in range(count)]


def batch(size: int, name: str = "b", compute_s: float = 0.01) -> BatchInfo:
    return BatchInfo(name, "echo", "1", size, Reason.FULL, 1_000, compute_s)


def all_ok(members: list[Request]) -> list[tuple[Request, Outcome]]:
    return [(each, Ok(b'"out"')) for each in members]


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher()


@pytest.fixture
def now() -> SimpleNamespace:
    return SimpleNamespace(s=100.0)


@pytest.fixture
def events(dispatcher: Dispatcher, now: SimpleNamespace) -> TaskEvents:
    return TaskEvents(lambda: dispatcher, 50, clock=lambda: now.s, wall=lambda: 1_700_000_000.0 + now.s)


def run(events: TaskEvents, members: list[Request], outcomes: list[tuple[Request, Outcome]], name: str = "b") -> None:
    events.claimed(members, batch(len(members), name))
    events.finished(outcomes, batch(len(members), name))


def test_a_batch_is_one_message(events: TaskEvents, dispatcher: Dispatcher) -> None:
    members = requests(40)
    run(events, members, all_ok(members))
    assert len(dispatcher.flushed) == 1
    assert set(map(tuple, dispatcher.kinds().values())) == {("received", "started", "succeeded")}
    assert len(dispatcher.kinds()) == 40


@pytest.mark.parametrize("payloads", [True, False])
def test_inputs_and_outputs_are_shown_only_where_asked_for(dispatcher: Dispatcher, payloads: bool) -> None:
    shown = TaskEvents(lambda: dispatcher, 50, payloads=payloads)
    member = structs.replace(requests(1)[0], input=b'"my input"', parameters=b'{"k":"my parameter"}')
    run(shown, [member], [(member, Ok(b'"my output"'))])
    events = [event for flush in dispatcher.flushed for event in flush]
    for secret in ("my input", "my parameter", "my output"):
        assert any(secret in str(event) for event in events) is payloads
    # Flower reads it so, for `kwargs:model=…` in its search.
    assert ast.literal_eval(events[0]["kwargs"])["model"] == "echo"


def test_over_the_rate_requests_are_whole_or_absent(events: TaskEvents, dispatcher: Dispatcher, now: Any) -> None:
    for n in range(4):
        members = requests(64, f"b{n}-")
        run(events, members, all_ok(members), f"b{n}")
    assert len(dispatcher.kinds()) == 50
    now.s += 0.5
    members = requests(64, "later")
    run(events, members, all_ok(members))
    assert len(dispatcher.kinds()) == 75
    assert set(map(tuple, dispatcher.kinds().values())) == {("received", "started", "succeeded")}


def test_failures_are_shown_when_the_sample_is_used_up(events: TaskEvents, dispatcher: Dispatcher) -> None:
    first = requests(50)
    run(events, first, all_ok(first))
    second = requests(64, "more")
    outcomes = all_ok(second)
    outcomes[9] = (second[9], Failed("broke"))
    outcomes[10] = (second[10], Expired())
    run(events, second, outcomes, "b2")
    assert dispatcher.kinds()["more9"] == ["received", "started", "failed"]
    assert dispatcher.kinds()["more10"] == ["received", "started", "revoked"]
    assert len(dispatcher.kinds()) == 52


def test_what_runs_again_is_shown_again(events: TaskEvents, dispatcher: Dispatcher) -> None:
    first = requests(50)
    run(events, first, all_ok(first))
    again = requests(3, "again", attempt=2)
    run(events, again, all_ok(again), "b2")
    shown = [dispatcher.kinds().get(each.id) for each in again]
    assert shown == [["received", "started", "succeeded"]] * 3


def test_a_retry_is_told_once_with_its_batch(events: TaskEvents, dispatcher: Dispatcher) -> None:
    members = requests(3)
    events.claimed(members, batch(3))
    events.retried(members[:1], batch(3), "a passing fault")
    events.finished(all_ok(members[1:]), batch(3))
    assert len(dispatcher.flushed) == 1
    assert dispatcher.kinds()["t0"] == ["received", "started", "retried"]
    assert dispatcher.kinds()["t1"] == ["received", "started", "succeeded"]


def test_a_long_batch_is_seen_while_it_computes(events: TaskEvents, dispatcher: Dispatcher, now: Any) -> None:
    members = requests(2)
    events.claimed(members, batch(2))
    assert dispatcher.kinds() == {}
    now.s += 1
    events.tick()
    assert dispatcher.kinds()["t0"] == ["received", "started"]
    events.tick()
    now.s += 1
    events.finished(all_ok(members), batch(2))
    assert dispatcher.kinds()["t0"] == ["received", "started", "succeeded"]
    started = [each for flush in dispatcher.flushed for each in flush if each["type"] == "task-started"]
    assert {each["timestamp"] for each in started} == {1_700_000_100.0}


def test_strings_are_short_whatever_the_payload(events: TaskEvents, dispatcher: Dispatcher) -> None:
    big = Request("big", Tier.PAID, 1, b'"' + b"x" * 100_000 + b'"', b'{"p":"' + b"y" * 100_000 + b'"}')
    bad = Request("bad", Tier.PAID, 2, b"1", b"{}")
    outcomes: list[tuple[Request, Outcome]] = [
        (big, Ok(b'"' + b"z" * 100_000 + b'"')),
        (bad, Failed("é" * 100_000, "E" * 100_000, traceback="t" * 100_000)),
    ]
    run(events, [big, bad], outcomes)
    texts = [
        value for flush in dispatcher.flushed for each in flush for value in each.values() if isinstance(value, str)
    ]
    assert max(len(text.encode()) for text in texts) <= SHORT


@pytest.mark.parametrize("change", [{"enabled": False}, {"groups": {"worker"}}])
def test_nothing_is_done_while_nobody_listens(
    events: TaskEvents, dispatcher: Dispatcher, change: dict[str, Any]
) -> None:
    for name, value in change.items():
        setattr(dispatcher, name, value)
    members = requests(3)
    run(events, members, [(members[0], Failed("broke"))])
    dispatcher.flush()
    assert dispatcher.flushed == []
    assert events._shown == {}


def test_a_given_back_batch_leaves_nothing_behind(events: TaskEvents) -> None:
    members = requests(3)
    events.claimed(members, batch(3))
    events.returned(batch(3))
    assert events._shown == {}


def test_at_full_speed_the_sample_comes_in_few_large_parts_at_its_rate() -> None:
    now = [0.0]
    sampler = EventSampler(100.0, clock=lambda: now[0])
    taken = []
    # 150 batches of 50 each second, for ten seconds.
    for n in range(1500):
        now[0] = n / 150
        taken.append(sampler.take(50))
    granted = [each for each in taken if each]
    # A second's worth at first, and then what the rate allows.
    assert sum(taken) == pytest.approx(100 + 100 * 10, abs=20)
    assert len(granted) <= 2 + 10 * 10
    assert min(granted) >= 10


def test_what_is_below_the_rate_is_shown_whole() -> None:
    now = [0.0]
    sampler = EventSampler(100.0, clock=lambda: now[0])
    for n in range(1000):
        now[0] = n / 50
        assert sampler.take(1) == 1


@pytest.mark.parametrize("size", [3, 5_000_000])
def test_an_output_of_bytes_is_shown_as_base64(dispatcher: Dispatcher, size: int) -> None:
    events = TaskEvents(lambda: dispatcher, 50, payloads=True)
    members = requests(1)
    events.claimed(members, batch(1))
    events.finished([(each, Ok(bytes(size), raw=True)) for each in members], batch(1))
    (shown,) = (each["result"] for flush in dispatcher.flushed for each in flush if "result" in each)
    assert shown == ('"AAAA"' if size == 3 else '"' + "A" * (SHOWN_BYTES - 1) + "…")

"""The door of collocated mode: admission, and requests that have been asked before."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from batching.claim.registry import ModelThroughput
from batching.claim.settler import Settler
from batching.claim.triage import Triage
from batching.fast_header import read_fast_header
from batching.memory.store import MemoryStore
from batching.memory.timed import Timed
from batching.policy import Reason, RetryPolicy
from batching.ports import BatchInfo, NoFollowUp, NullObserver
from batching.request import Expired, Ok, Outcome, Request
from cli.collocated.runner import LocalCodec
from config.keys import Shard
from config.settings import ModelSettings, Settings
from config.tiers import Tier
from tasks.client.collocated.admission import LocalAdmission
from tasks.client.collocated.outbox import LocalOutbox, LocalWriter
from tasks.client.dedup import Deduplicator, Repeated
from tasks.client.outbox import Receipt
from tasks.client.pending import Pending
from tasks.client.submission import Submission
from tasks.errors import IdempotencyConflict, RateLimited, ServiceOverloaded
from tasks.protocol.caller import ANYBODY
from tasks.protocol.messages import read_payload
from tasks.protocol.outgoing import Outgoing
from tasks.protocol.quota import Quota
from tasks.protocol.results import decode_reply

MODEL = "m"
FAST = ModelThroughput(1, 1000.0, 0.001, 0.01)


class Door:
    """The outbox, and the worker's side of its store."""

    def __init__(self, *, depth: int = 1000, capacity: ModelThroughput = FAST, most_bytes: int = 0) -> None:
        self.now_ms = 1_790_000_000_000
        model = ModelSettings(name=MODEL, source="tests:Nothing", max_queue_depth=depth)
        self.settings = Settings(models={MODEL: model}, default_model=MODEL)
        self.store = MemoryStore(now_ms=lambda: self.now_ms)
        self.store.on_replies = self.told_of
        admission = LocalAdmission(self.settings, self.store, lambda model: capacity, most_bytes)
        self.said: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}
        writer = LocalWriter("bunch:reply:me")
        self._outbox = LocalOutbox(self.settings, self.store, admission, self._settle, writer)
        self._recogniser = Deduplicator(self.settings, Shard())
        self._ids = (f"{number:036d}" for number in itertools.count())
        self._batches = itertools.count()

    def send(
        self, input: object = 1, tier: Tier = Tier.PAID, *, key: str = "", quota: Quota | None = None, ms: int = 10_000
    ) -> str:
        submission = Submission(MODEL, ANYBODY[tier], msgspec.json.encode(input), ms / 1000, idempotency_key=key)
        once = self._recogniser.of(submission)
        task_id = next(self._ids)
        out = Outgoing(task_id, submission, Shard().queue(MODEL, tier), ms, ms, 60_000, True, "", quota, once)
        self._outbox.put(out, b"", Pending(task_id, 0.0), receipt=True)
        return task_id

    def run(self, outcome: Outcome | None = None, size: int = 64) -> list[Request]:
        """Claim a batch and end it; without an outcome each output is the input."""
        claim = self.store.claim(MODEL, f"b{next(self._batches)}", size)
        codec = LocalCodec(60_000)
        requests, settled, _ = Triage(MODEL, codec, RetryPolicy(3), frozenset()).sort(claim)
        info = BatchInfo(claim.batch_id, MODEL, "1", len(requests), Reason.FULL, claim.view.now_ms)
        settler = Settler("e", MODEL, self.store, codec, NullObserver(), RetryPolicy(3), NoFollowUp())
        settler.settle([*settled, *((each, outcome or Ok(each.input)) for each in requests)], info, last=True)
        return requests

    def told_of(self, replies: Any) -> None:
        for task_id, raw in replies:
            self.answers[task_id] = decode_reply(raw)

    def _settle(self, pending: Pending, value: object) -> None:
        self.said[pending.task_id] = value


def test_an_accepted_request_has_a_receipt_and_a_state_and_is_answered() -> None:
    door = Door()
    task_id = door.send({"a": 1})
    assert door.said[task_id] == Receipt(task_id)
    assert decode_reply(door.store.states.get(task_id) or b"").status == "PENDING"
    (request,) = door.run()
    assert (request.id, request.tier, request.input, request.attempt) == (task_id, Tier.PAID, b'{"a":1}', 1)
    assert bytes(door.answers[task_id].result) == b'{"a":1}'
    assert decode_reply(door.store.states.get(task_id) or b"").status == "SUCCESS"


def test_a_message_is_written_as_a_frontend_writes_it() -> None:
    door = Door()
    task_id = door.send({"a": 1}, Tier.FREE)
    ((model, rank, item),) = door.store.take_all()
    header = read_fast_header(item.message)
    assert (model, rank, header) == (MODEL, Tier.FREE.rank, item.header)
    assert header is not None
    assert header.task_id == task_id
    assert read_payload(item.message) == (b'{"a":1}', b"{}")
    assert door.store.waiting == 0


def test_a_kept_answer_is_given_at_once_and_not_after_a_load() -> None:
    door = Door()
    first = door.send("x")
    door.run()
    again = door.send("x")
    assert decode_reply(door.store.states.get(again) or b"").result == door.answers[first].result
    assert b'"cached":true' in bytes(door.answers[again].bunch)
    assert door.run() == []
    door.store.questions.forget(MODEL)
    door.send("x")
    assert len(door.run()) == 1


def test_equal_requests_wait_for_one_computation() -> None:
    door = Door()
    ids = [door.send("x") for _ in range(3)]
    assert [each.id for each in door.run()] == ids[:1]
    assert [bytes(door.answers[each].result) for each in ids] == [b'"x"'] * 3
    assert [b'"collapsed":true' in bytes(door.answers[each].bunch) for each in ids] == [False, True, True]
    assert [door.answers[each].task_id for each in ids] == ids


def test_one_who_waits_takes_the_place_of_a_request_that_was_not_computed() -> None:
    door = Door()
    ids = [door.send("x") for _ in range(3)]
    door.store.take_back(ids[0])
    assert door.run() == []
    door.store.take_back(ids[2])
    assert [each.id for each in door.run()] == [ids[1]]
    assert bytes(door.answers[ids[1]].result) == b'"x"'
    assert ids[2] not in door.answers
    late = [door.send("y", ms=1000), door.send("y", ms=500)]
    door.now_ms += 700
    door.run(Expired())
    assert {door.answers[each].status for each in late} == {"FAILURE"}


def test_a_higher_tier_computes_the_answer_for_a_lower_one_that_waits() -> None:
    door = Door()
    low, high = door.send("x", Tier.FREE), door.send("x", Tier.ENTERPRISE)
    assert [(each.id, each.tier) for each in door.run()] == [(high, Tier.ENTERPRISE)]
    assert bytes(door.answers[low].result) == b'"x"'


def test_an_idempotency_key_names_one_request() -> None:
    door = Door()
    first, again, other = door.send(1, key="k"), door.send(1, key="k"), door.send(2, key="k")
    assert door.said[again] == Repeated(first)
    assert isinstance(door.said[other], IdempotencyConflict)
    assert len(door.run()) == 1
    assert door.said[door.send(1, key="k")] == Repeated(first)


def test_a_request_that_was_cancelled_does_not_answer_for_its_key() -> None:
    door = Door()
    first = door.send(1, key="k")
    door.store.cancel(first, "PENDING")
    again = door.send(1, key="k")
    assert door.said[again] == Receipt(again)
    assert door.run() == [], "it waited for the cancelled one, and takes its place"
    assert [each.id for each in door.run()] == [again]


def test_a_full_queue_and_a_hopeless_deadline_are_refused() -> None:
    door = Door(depth=2)
    ids = [door.send(number) for number in range(3)]
    refused = door.said[ids[2]]
    assert isinstance(refused, ServiceOverloaded)
    assert refused.reason == "queue_full"
    assert (refused.retry_after_s or 0) > 0
    slow = Door(capacity=ModelThroughput(1, 1.0, 1.0, 1.0))
    hopeless = [slow.send(number, Tier.ENTERPRISE, ms=2000) for number in range(4)]
    assert slow.said[hopeless[3]].reason == "deadline"


def test_a_key_has_its_rate_and_a_refusal_for_another_reason_costs_none() -> None:
    quota = Quota.of("key", 60, 2)
    door = Door()
    ids = [door.send(number, quota=quota) for number in range(3)]
    assert [type(door.said[each]) for each in ids] == [Receipt, Receipt, RateLimited]
    assert door.said[ids[2]].limits[:3] == (60, 2, 0)
    full = Door(depth=1)
    full.send("first")
    refused = [full.said[full.send(number, quota=quota)] for number in range(5)]
    assert {each.reason for each in refused} == {"queue_full"}
    assert {each.limits[2] for each in refused} == {2}


def test_memory_that_is_full_refuses_everybody() -> None:
    door = Door(most_bytes=1000)
    door.send("x" * 500)
    door.now_ms += 1000
    refused = door.said[door.send("y")]
    assert isinstance(refused, RateLimited)
    assert refused.reason == "memory"


def test_memory_that_was_full_of_results_lets_in_again_once_they_have_expired() -> None:
    door = Door(most_bytes=20_000)
    while not isinstance(door.said[door.send("x" * 2000)], RateLimited):
        door.run()
        door.now_ms += 300
    door.now_ms += 3_600_000
    assert isinstance(door.said[task_id := door.send("y")], Receipt), door.said[task_id]


def test_requests_that_wait_for_an_equal_one_fill_the_memory_and_leave_it_again() -> None:
    door = Door(most_bytes=100_000, depth=10)
    refused = 0
    for _ in range(100):
        door.now_ms += 300
        refused += isinstance(door.said[door.send("x" * 5000, ms=1_000_000)], RateLimited)
    assert refused > 75
    assert door.store.questions.waiting_bytes > 50_000
    assert len(door.run()) == 1
    assert door.store.questions.waiting_bytes == 0
    door.now_ms += 3_600_000
    assert door.store.used_bytes == 0


def test_all_that_is_not_answered_counts_wherever_it_waits() -> None:
    door = Door()
    ids = [door.send("x" * 1000) for _ in range(3)]
    states, whole = door.store.states.bytes, door.store.used_bytes
    assert whole - states > 3000
    claim = door.store.claim(MODEL, "b", 64)
    assert door.store.used_bytes - door.store.states.bytes == whole - states
    door.store.put_aside(MODEL, "b", [(1, 500)], last=True)
    assert door.store.used_bytes - door.store.states.bytes == whole - states
    door.now_ms += 500
    door.store.take_back(ids[0])
    assert len(claim.entries) == 1
    # The next of them is computed in its place, and the last one waits for it.
    assert door.run() == []
    assert (door.store.used_bytes - door.store.states.bytes) * 3 == (whole - states) * 2
    assert [each.id for each in door.run()] == ids[1:2]
    assert door.store.used_bytes == door.store.states.bytes


def test_a_cancelled_request_is_remembered_for_as_long_as_its_state() -> None:
    door = Door()
    door.store.cancel(door.send("x"), "PENDING")
    assert len(door.store.cancelled) == 1
    door.now_ms += 70_000
    door.store.cancelled.expire()
    assert len(door.store.cancelled) == 0


@pytest.mark.parametrize("ttl_ms", [10, 1000])
def test_values_expire_and_are_not_counted_any_more(ttl_ms: int) -> None:
    now = [0]
    values: Timed[bytes] = Timed(lambda: now[0], len)
    values.set("a", b"123", ttl_ms)
    values.set("b", b"12345", 10_000)
    values.replace("a", b"1")
    assert (values.get("a"), values.bytes) == (b"1", 6)
    now[0] = ttl_ms
    assert values.get("a") is None
    values.set("b", b"12", 10_000)
    assert (values.bytes, len(values)) == (2, 1)

"""Large inputs and outputs of a frontend, which lie beside the queue; the scenario is the worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import structs

from batching.blobs.local_first import LocalFirst
from batching.blobs.reference import BlobRef, read_reference
from batching.blobs.store import GRACE_MS, BlobGoneError, RedisBlobs, Room
from batching.claim.lease import Verdict
from batching.claim.payloads import Payloads
from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Ok, Request
from config.redis import connect
from config.tiers import Tier
from tasks.errors import BackendUnavailable, IdempotencyConflict, InvalidInput, RateLimited
from tasks.observability.explain import explain
from tasks.protocol.caller import Caller
from tasks.protocol.outputs import PlacedBlobs
from tasks.protocol.results import CeleryCodec
from tests.gevent_scenarios.frontend_fixture import (
    ANN,
    KEPT,
    LONG_S,
    NOBODY,
    SHARED,
    SMALL,
    FrontendFixture,
    asking,
    clients_of,
    error_of,
    output,
)
from tests.gevent_scenarios.resent import FORGETFUL, replaced, server
from tests.waiting import wait_until

LARGE = "x" * 100_000
CODEC = CeleryCodec(60_000)


def names(frontend: FrontendFixture) -> set[str]:
    return {each.decode() for each in frontend.redis.scan_iter("bunch:blob:*", 1000)}


def turn(
    frontend: FrontendFixture,
    model: str = NOBODY,
    answer: Callable[[bytes], bytes] = lambda value: value,
    payloads: Payloads | None = None,
) -> int:
    """Act as the worker for one batch, with payloads as it has them; returns the number of its requests that ran."""
    blobs = PlacedBlobs(frontend.places)
    payloads = payloads or Payloads(blobs.of, result_ttl_ms=60_000, letter_ttl_ms=60_000)
    claim = frontend.claim(model)
    requests: list[Request] = [CODEC.decode(each) for each in claim.entries if each.verdict is Verdict.RUN]
    info = BatchInfo(claim.batch_id, model, "1", len(requests), Reason.IDLE, claim.view.now_ms, 0.001)
    inputs = payloads.read(requests, claim.view.now_ms)
    ended = [(each, Ok(answer(bytes(value)))) for each, value in zip(inputs.run, inputs.values, strict=True)]
    told = [*payloads.lay_aside(ended), *inputs.settled]
    frontend.store.finish(claim.batch_id, [CODEC.encode(*each, info) for each in told], last=True)
    payloads.release(requests)
    return len(inputs.run)


def a_large_input_is_written_before_its_message_and_read_by_reference(frontend: FrontendFixture) -> None:
    pending = frontend.submit(LARGE, NOBODY)
    wait_until(lambda: frontend.depth() == 1)
    (name,) = names(frontend)
    assert name == frontend.keys_of(pending.task_id).blob(pending.task_id)
    assert 0 < frontend.redis.pttl(name) <= 1000 * LONG_S + GRACE_MS
    message = frontend.next_message(NOBODY, Tier.PAID)
    assert len(message) < 1500
    assert turn(frontend, answer=lambda value: b"%d" % len(value)) == 1
    assert output(frontend.client.wait(pending)) == len(LARGE) + 2
    assert not names(frontend)


def explain_tells_of_it(frontend: FrontendFixture) -> None:
    pending = frontend.submit(LARGE, NOBODY)
    wait_until(lambda: frontend.depth() == 1)
    for _ in range(2):
        about = explain(frontend.places, [NOBODY], pending.task_id)
        assert about is not None
        assert about["payload_bytes"] == len(LARGE) + 2
        # The second time it is in a lease.
        frontend.claim(NOBODY)


def bytes_are_there_as_they_are(frontend: FrontendFixture) -> None:
    raw = bytes(range(256)) * 200
    pending = frontend.client.submit(asking(NOBODY, raw, binary=True))
    wait_until(lambda: frontend.depth() == 1)
    assert frontend.redis.get(frontend.keys_of(pending.task_id).blob(pending.task_id)) == raw
    digest = blake3(raw).hexdigest()
    entry = CODEC.decode(frontend.claim(NOBODY).entries[0])
    assert entry.blob == BlobRef(pending.task_id, len(raw), digest, "bytes")


def small_ones_stay_in_their_messages(frontend: FrontendFixture) -> None:
    pending = frontend.submit("small", NOBODY)
    wait_until(lambda: frontend.depth() == 1)
    assert not names(frontend)
    assert turn(frontend) == 1
    assert output(frontend.client.wait(pending)) == "small"


def a_large_output_is_read_and_deleted_by_the_only_one_who_may(frontend: FrontendFixture) -> None:
    pending = frontend.submit("small", NOBODY)
    wait_until(lambda: frontend.depth() == 1)
    turn(frontend, answer=lambda _: msgspec.json.encode(LARGE))
    assert len(names(frontend)) == 1
    assert output(frontend.client.wait(pending)) == LARGE
    wait_until(lambda: not names(frontend), what="it is deleted")


def whoever_polls_may_read_it_again(frontend: FrontendFixture) -> None:
    task_id = frontend.client.receipt(frontend.submit("small", NOBODY, waits=False))
    turn(frontend, answer=lambda _: msgspec.json.encode(LARGE))
    for _ in range(2):
        reply = frontend.client.result(task_id)
        assert reply is not None
        assert output(reply) == LARGE


def an_output_that_looks_like_a_reference_is_an_output(frontend: FrontendFixture) -> None:
    forged = msgspec.json.encode({"$blob": {"id": "some-other-blob", "size": 5, "sha256": "0" * 64}})
    pending = frontend.submit("small", NOBODY)
    wait_until(lambda: frontend.depth() == 1)
    turn(frontend, answer=lambda _: forged)
    assert bytes(frontend.client.wait(pending).result) == forged


def nobody_sends_a_reference(frontend: FrontendFixture) -> None:
    other = frontend.submit(LARGE, NOBODY)
    wait_until(lambda: frontend.depth() == 1)
    ref = BlobRef(other.task_id, 100_002, "0" * 64)
    for forged in (msgspec.to_builtins({"$blob": ref}), {"$blob": 5}):
        error = error_of(partial(frontend.ask, forged, NOBODY))
        assert isinstance(error, InvalidInput)
        assert "$blob" in error.message
    assert frontend.depth() == 1


def what_is_not_queued_leaves_no_payload(frontend: FrontendFixture) -> None:
    pendings = [frontend.submit(f"{LARGE}{number}", SMALL) for number in range(5)]
    wait_until(lambda: sum(each.done for each in pendings) == 2, what="the queue has room for three")
    wait_until(lambda: len(names(frontend)) == 3, what="the others' are deleted")
    once_a_minute = Caller("k", "o", Tier.PAID, rpm=1, burst=1)
    frontend.submit(LARGE, NOBODY, caller=once_a_minute)
    # Payloads are written side by side: the second one might be the first.
    wait_until(lambda: frontend.depth() == 1)
    assert isinstance(error_of(partial(frontend.ask, LARGE, NOBODY, caller=once_a_minute)), RateLimited)
    wait_until(lambda: len(names(frontend)) == 4, what="that of the second one is deleted")


def without_room_nothing_is_queued(frontend: FrontendFixture) -> None:
    for each, place in zip(clients_of(frontend.client), frontend.places, strict=True):
        each._payloads._blobs = LocalFirst(RedisBlobs(place.redis, place.keys, Room(max_bytes=150_000)))
    # All of one owner's are in one shard.
    first = frontend.submit(LARGE, NOBODY, caller=ANN)
    wait_until(lambda: frontend.depth() == 1)
    error = error_of(partial(frontend.ask, LARGE, NOBODY, caller=ANN))
    assert isinstance(error, RateLimited)
    assert error.reason == "memory"
    assert frontend.depth() == 1
    turn(frontend)
    assert output(frontend.client.wait(first)) == LARGE
    again = frontend.submit(LARGE, NOBODY, caller=ANN)
    wait_until(lambda: frontend.depth() == 1)
    turn(frontend)
    assert output(frontend.client.wait(again)) == LARGE


def equal_payloads_share_one_computation_and_leave_nothing(frontend: FrontendFixture) -> None:
    first, second = frontend.submit(LARGE, SHARED), frontend.submit(LARGE, SHARED)
    other = frontend.submit(LARGE + "y", SHARED)
    wait_until(lambda: (frontend.depth(SHARED), frontend.waiting()) == (2, 3))
    assert len(names(frontend)) == 3
    assert turn(frontend, SHARED, lambda value: b"%d" % len(value)) == 2
    assert [output(frontend.client.wait(each)) for each in (first, second, other)] == [100_002, 100_002, 100_003]


def an_answer_that_is_kept_answers_an_equal_payload(frontend: FrontendFixture) -> None:
    first = frontend.submit(LARGE, KEPT)
    wait_until(lambda: frontend.depth(KEPT) == 1)
    turn(frontend, KEPT, lambda value: value)
    assert output(frontend.client.wait(first)) == LARGE
    # A large output too: those who ask later read it again.
    for _ in range(2):
        assert frontend.ask(LARGE, KEPT) == LARGE
    wait_until(lambda: all("." in each for each in names(frontend)), what="no input is left")


def a_key_tells_payloads_apart(frontend: FrontendFixture) -> None:
    pending = frontend.submit(LARGE, NOBODY, idempotency_key="k")
    wait_until(lambda: frontend.depth() == 1)
    assert isinstance(error_of(partial(frontend.ask, LARGE + "y", NOBODY, idempotency_key="k")), IdempotencyConflict)
    turn(frontend)
    assert output(frontend.client.wait(pending)) == LARGE
    assert frontend.ask(LARGE, NOBODY, idempotency_key="k") == LARGE
    wait_until(lambda: all("." in each for each in names(frontend)), what="no input is left")


def whoever_has_gone_meanwhile_is_not_queued(frontend: FrontendFixture) -> None:
    for each in clients_of(frontend.client):
        blobs: Any = each._payloads._blobs
        put = blobs.put

        def slow(*args: object, put: Callable[..., None] = put) -> None:
            put(*args)
            pending.settle(None)

        blobs.put = slow
    pending = frontend.submit(LARGE, NOBODY)
    wait_until(lambda: pending.done and not names(frontend))
    assert frontend.depth() == 0


def a_store_that_is_away_is_said_at_once(frontend: FrontendFixture) -> None:
    for each in clients_of(frontend.client):
        each._payloads._blobs = LocalFirst(RedisBlobs(connect("redis://127.0.0.1:1")))
    assert isinstance(error_of(partial(frontend.ask, LARGE, NOBODY)), BackendUnavailable)
    assert frontend.depth() == 0


def a_payload_is_sent_again_with_its_request(_: FrontendFixture) -> None:
    with server(*FORGETFUL) as (valkey, frontend):
        pending = frontend.submit(LARGE, NOBODY)
        wait_until(lambda: frontend.depth() == 1)
        wait_until(lambda: frontend.client.resendable_bytes > len(LARGE))
        replaced(valkey, frontend)
        wait_until(lambda: frontend.depth() == 1)
        turn(frontend)
        assert output(frontend.client.wait(pending)) == LARGE


def an_output_that_is_gone_is_no_output(frontend: FrontendFixture) -> None:
    task_id = frontend.client.receipt(frontend.submit("small", NOBODY, waits=False))
    turn(frontend, answer=lambda _: msgspec.json.encode(LARGE))
    frontend.redis.delete(*names(frontend))
    assert isinstance(error_of(partial(frontend.client.result, task_id)), BackendUnavailable)


def its_reference_says_what_it_is(frontend: FrontendFixture) -> None:
    frontend.submit(LARGE, NOBODY)
    wait_until(lambda: frontend.depth() == 1)
    request = CODEC.decode(frontend.claim(NOBODY).entries[0])
    assert request.blob == read_reference(request.input)
    assert request.blob is not None
    blobs = RedisBlobs(frontend.redis, frontend.keys_of(request.id))
    for wrong in (structs.replace(request.blob, blake3="0" * 64), structs.replace(request.blob, size=5)):
        try:
            blobs.get(wrong)
        except BlobGoneError:
            continue
        raise AssertionError("it was read")

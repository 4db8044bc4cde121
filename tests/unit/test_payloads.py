"""Large inputs and outputs in the worker: read before a batch, laid aside before a result, gone with the outcome."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from batching.blobs.reference import BlobRef, Form, read_reference, reference_to
from batching.blobs.store import GRACE_MS, Room
from batching.claim import payloads as module
from batching.claim.payloads import Payloads
from batching.request import Done, Failed, Ok, Request, Work
from config.tiers import Tier
from tasks.protocol.outputs import with_output
from tasks.protocol.results import BytesReply, Reply, decode_reply
from tests.fakes.blobs import MemoryBlobs
from tests.fakes.claim_rig import Rig, ScriptedExecutor, done
from tests.fakes.messages import celery_message, our_message
from tests.waiting import wait_until

HOUR_MS = 3_600_000
ANY_ROOM = Room()
ONE = "11111111-1111-8111-a111-111111111111"
TWO = "22222222-2222-8222-a222-222222222222"
THREE = "33333333-3333-8333-a333-333333333333"


def echo(work: Work) -> Done:
    """As a process does: what it gets, it gets as bytes."""
    return done(work, [Ok(bytes(each)) for each in work.inputs])


class BlobRig(Rig):
    """A rig with a store of blobs."""

    def __init__(self, room: Room = ANY_ROOM, **options: Any) -> None:
        self.blobs = MemoryBlobs(room)
        self.payloads = Payloads(
            lambda _: self.blobs, inline_bytes=100, most_bytes=1000, result_ttl_ms=HOUR_MS, letter_ttl_ms=HOUR_MS
        )
        super().__init__(ScriptedExecutor(echo), payloads=self.payloads, **options)

    def put_blob(self, task_id: str, value: bytes = b'"large"', form: Form = "json", **options: Any) -> BlobRef:
        """Queue a request whose input lies beside the queue."""
        ref = reference_to(task_id, value, form)
        self.blobs.put(ref, value, 60_000)
        self.put_raw(our_message(task_id, ref.json, **options))
        return ref


@pytest.fixture
def make() -> Iterator[Callable[..., BlobRig]]:
    rigs: list[BlobRig] = []

    def of(*args: Any, **options: Any) -> BlobRig:
        rigs.append(BlobRig(*args, **options))
        return rigs[-1]

    yield of
    for each in rigs:
        each.close()


Make = Callable[..., BlobRig]


def output(rig: Rig, task_id: str) -> bytes:
    (reply,) = rig.settled(task_id)
    return bytes(reply.result)


def test_the_executor_gets_the_payload_and_it_is_gone_with_the_outcome(make: Make) -> None:
    rig = make()
    rig.put_blob(ONE)
    rig.put(TWO)
    rig.put_blob(THREE, b"\xff\xd8 no text", "bytes")
    rig.executor.answer = lambda work: done(work, [Ok(b"1") for _ in work.inputs])
    rig.start()
    assert [each.status for each in rig.settled(ONE, TWO, THREE)] == ["SUCCESS"] * 3
    (work,) = rig.executor.taken
    assert [bytes(each) for each in work.inputs] == [b'"large"', msgspec.json.encode(TWO), b"\xff\xd8 no text"]
    assert work.raw == [2]
    wait_until(lambda: not rig.blobs.blobs, what="the payloads are gone")


def test_a_payload_that_is_gone_fails_its_request_alone(make: Make) -> None:
    rig = make()
    gone = rig.put_blob(ONE)
    rig.blobs.release([gone.id])
    rig.put_blob(TWO)
    rig.start()
    error, details = rig.error(ONE)
    assert (details.code, "send the request again" in error.text) == ("BACKEND_UNAVAILABLE", True)
    assert output(rig, TWO) == b'"large"'
    # A dead letter of it says why; there is nothing to keep.
    assert set(rig.store.letters) == {ONE}


def test_another_payload_than_its_message_says_is_as_good_as_none(make: Make) -> None:
    rig = make()
    rig.put_blob(ONE)
    rig.blobs.put(reference_to(ONE, b'"other"', "json"), b'"other"', 60_000)
    rig.start()
    assert rig.error(ONE)[1].code == "BACKEND_UNAVAILABLE"


def test_a_message_may_not_name_the_payload_of_another(make: Make) -> None:
    rig = make()
    other = rig.put_blob(TWO, deadline_in_ms=60_000)
    rig.put_raw(our_message(ONE, other.json))
    rig.put_raw(celery_message((msgspec.to_builtins({"$blob": other}),), task_id=THREE))
    rig.start()
    for task_id in (ONE, THREE):
        assert "names the payload of another request" in rig.error(task_id)[0].text
    assert output(rig, TWO) == b'"large"'


def test_a_celery_client_does_not_name_the_memory_of_a_frontend(make: Make) -> None:
    rig = make()
    ref = BlobRef("client-0001", 5, "0" * 64, "json", near=True)
    rig.put_raw(celery_message((msgspec.to_builtins({"$blob": ref}),), task_id=ONE))
    rig.start()
    assert "names the memory of a frontend" in rig.error(ONE)[0].text


def test_a_celery_client_writes_one_under_a_name_of_its_own(make: Make) -> None:
    rig = make()
    ref = reference_to("client-0001", b'"theirs"', "json")
    rig.blobs.put(ref, b'"theirs"', 60_000)
    rig.put_raw(celery_message((msgspec.to_builtins({"$blob": ref}),), task_id=ONE))
    rig.start()
    assert output(rig, ONE) == b'"theirs"'
    wait_until(lambda: not rig.blobs.blobs, what="the payload is gone")


def test_a_celery_client_claims_no_more_than_an_input_may_have(make: Make) -> None:
    rig = make()
    ref = BlobRef("client-0001", 1001, "0" * 64, "bytes")
    rig.put_raw(celery_message((msgspec.to_builtins({"$blob": ref}),), task_id=ONE))
    rig.put_blob(TWO, b"x" * 1001, "bytes")
    rig.start()
    error, details = rig.error(ONE)
    assert (details.code, "BUNCH_BLOB_MAX_BYTES" in error.text) == ("PAYLOAD_TOO_LARGE", True)
    assert b'"size":1001' in output(rig, TWO), "a frontend has its own limit"


def test_what_only_looks_like_a_reference_is_refused(make: Make) -> None:
    rig = make()
    rig.put_raw(our_message(ONE, b'{"$blob":{"id":"../../etc"}}'))
    rig.start()
    assert "no reference" in rig.error(ONE)[0].text


@pytest.mark.parametrize("late", [False, True])
def test_while_the_store_is_away_its_requests_wait_and_others_do_not(make: Make, late: bool) -> None:
    rig = make()
    away = [True]

    def before(call: str) -> None:
        if away[0] and call == "get":
            raise RedisConnectionError("away")

    rig.blobs.before = before
    rig.put_blob(ONE, deadline_in_ms=400 if late else 60_000)
    rig.put(TWO)
    rig.start()
    assert output(rig, TWO) == msgspec.json.encode(TWO)
    if late:
        assert rig.error(ONE)[1].code == "DEADLINE_EXCEEDED"
        return
    wait_until(lambda: rig.store.put_aside_count("m") == 1, what="it waits")
    away[0] = False
    (reply,) = rig.settled(ONE)
    assert bytes(reply.result) == b'"large"'
    # It was no attempt of the model.
    assert rig.witness.tries(ONE) == [(1, 0)]


def test_retries_read_it_again_and_keep_it_until_then(make: Make) -> None:
    tries: list[Work] = []

    def answer(work: Work) -> Done:
        tries.append(work)
        return done(work, [Failed("not now", retryable=True)]) if len(tries) < 3 else echo(work)

    rig = make()
    rig.executor.answer = answer
    rig.put_blob(ONE)
    rig.start()
    assert output(rig, ONE) == b'"large"'
    assert [bytes(each.inputs[0]) for each in tries] == [b'"large"'] * 3
    wait_until(lambda: not rig.blobs.blobs, what="the payload is gone")


def test_a_dead_letter_keeps_its_payload(make: Make) -> None:
    rig = make()
    rig.executor.answer = lambda work: done(work, [Failed("broken")])
    ref = rig.put_blob(ONE)
    rig.start()
    assert rig.error(ONE)[1].code == "INFERENCE_FAILED"
    assert rig.blobs.get(ref) == b'"large"'
    assert rig.blobs.usage().kept_bytes == ref.size


@pytest.mark.parametrize("end", ["expired", "cancelled"])
def test_what_does_not_run_leaves_nothing(make: Make, end: str) -> None:
    rig = make()
    rig.put_blob(ONE, deadline_in_ms=-1 if end == "expired" else 60_000)
    if end == "cancelled":
        rig.store.take_back(ONE)
    rig.start()
    rig.settled(ONE)
    assert not rig.executor.taken
    wait_until(lambda: not rig.blobs.blobs, what="the payload is gone")


def test_a_batch_reads_no_more_than_fits_into_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_READ_BYTES", 250)
    rig = make()
    for task_id in (ONE, TWO, THREE):
        rig.put_blob(task_id, b'"%s"' % (b"x" * 100))
    rig.start()
    rig.settled(ONE, TWO, THREE)
    assert sorted(len(work.inputs) for work in rig.executor.taken) == [1, 2]
    assert {rig.witness.tries(each)[0] for each in (ONE, TWO, THREE)} == {(1, 0)}


def large_output(work: Work) -> Done:
    return done(work, [Ok(b'"%s"' % (b"y" * 200)) for _ in work.inputs])


class Fetched:
    """A `Fetcher` that has everything."""

    def __init__(self, size: int) -> None:
        self.asked: list[int | None] = []
        self._value = bytearray(size)

    def refers(self, value: bytes) -> bool:
        return value == b'{"$ref":1}'

    def begin(self, request: Request, left_s: float) -> None: ...

    def result(self, request: Request, wait_s: float, most_bytes: int | None) -> bytearray | None:
        self.asked.append(most_bytes)
        return None if most_bytes is not None and most_bytes < len(self._value) else self._value


def test_what_is_fetched_counts_among_the_bytes_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_READ_BYTES", 250)
    fetcher, blobs = Fetched(100), MemoryBlobs(ANY_ROOM)
    ref = reference_to("blob-of-4", b"x" * 100, "bytes")
    blobs.put(ref, b"x" * 100, 60_000)
    requests = [Request(str(n), Tier.PAID, 1, b'{"$ref":1}', b"{}") for n in range(3)]
    requests.insert(1, Request("blob", Tier.PAID, 1, ref.json, b"{}", blob=ref))
    inputs = Payloads(lambda _: blobs, fetcher=fetcher).read(requests, 0.0)
    assert [each.id for each in inputs.run] == ["0", "blob"]
    assert [each.id for each, _ in inputs.later] == ["1", "2"]
    assert fetcher.asked == [None, 50, 50]


def test_it_tells_what_reading_took() -> None:
    blobs = MemoryBlobs(ANY_ROOM)
    ref = reference_to("blob-of-4", b"x" * 100, "bytes")
    blobs.put(ref, b"x" * 100, 60_000)
    times = iter((1.0, 1.0, 1.25))
    payloads = Payloads(lambda _: blobs, clock=lambda: next(times))
    plain = Request("plain", Tier.PAID, 1, b"1", b"{}")
    assert payloads.read([plain], 0.0).read_s == 0.0
    assert payloads.read([Request("blob", Tier.PAID, 1, ref.json, b"{}", blob=ref)], 0.0).read_s == 0.25


def test_a_large_output_lies_aside_until_its_result_is_gone(make: Make) -> None:
    rig, _, ref = laid_aside(make, large_output)
    assert ref.id.startswith(f"{ONE}.")
    assert rig.blobs.get(ref) == b'"%s"' % (b"y" * 200)
    left_s = rig.blobs.ends_in_s(ref.id)
    assert GRACE_MS / 1000 < left_s <= (60_000 + GRACE_MS) / 1000


def test_the_output_of_a_plain_celery_client_stays_in_its_result(make: Make) -> None:
    rig = make()
    rig.executor.answer = large_output
    rig.put_raw(celery_message(("x",), task_id=ONE))
    rig.start()
    assert output(rig, ONE) == b'"%s"' % (b"y" * 200)
    assert not rig.blobs.blobs


@pytest.mark.parametrize("why", ["away", "full"])
def test_an_output_that_cannot_be_laid_aside_stays_in_its_result(make: Make, why: str) -> None:
    rig = make(Room(max_bytes=10) if why == "full" else ANY_ROOM)

    def before(call: str) -> None:
        if why == "away":
            raise RedisConnectionError("away")

    rig.blobs.before = before
    rig.executor.answer = large_output
    rig.put(ONE)
    rig.start()
    assert output(rig, ONE) == b'"%s"' % (b"y" * 200)


PICTURE = bytes(range(256)) * 200
AS_TEXT = b'"%b"' % base64.b64encode(PICTURE)


def laid_aside(make: Make, answer: Callable[[Work], Done]) -> tuple[BlobRig, Reply, BlobRef]:
    """A request that was answered so, its result, and the reference to its output there."""
    rig = make()
    rig.executor.answer = answer
    rig.put(ONE)
    rig.start()
    (reply,) = rig.settled(ONE)
    ref = read_reference(bytes(reply.result))
    assert ref is not None
    return rig, reply, ref


def picture(work: Work) -> Done:
    return done(work, [Ok(PICTURE, b'"output_type":"bytes"', raw=True) for _ in work.inputs])


def test_a_large_output_that_is_bytes_lies_aside_as_it_is(make: Make) -> None:
    rig, reply, ref = laid_aside(make, picture)
    assert (ref.form, rig.blobs.get(ref)) == ("bytes", PICTURE)
    for as_bytes in (False, True):
        found = with_output(reply, rig.blobs, as_bytes=as_bytes)
        assert isinstance(found, BytesReply) is as_bytes
        assert bytes(found.in_json().result) == AS_TEXT
        assert (found.task_id, found.status, found.date_done) == (reply.task_id, "SUCCESS", reply.date_done)
        assert bytes(found.bunch) == bytes(found.in_json().bunch) == bytes(reply.bunch)


@pytest.mark.parametrize("why", ["foreign", "away", "full", "none", "small", "canvas"])
def test_an_output_that_is_bytes_is_base64_wherever_it_stays_in_its_result(why: str) -> None:
    blobs = MemoryBlobs(Room(max_bytes=10) if why == "full" else ANY_ROOM)

    def before(call: str) -> None:
        if why == "away":
            raise RedisConnectionError("away")

    blobs.before = before
    store = None if why == "none" else lambda _: blobs
    payloads = Payloads(store, inline_bytes=len(PICTURE) if why == "small" else 100)
    about = {"foreign": why == "foreign", "canvas": b"{}" if why == "canvas" else b""}
    request = Request(ONE, Tier.PAID, 1, b"1", b"{}", result_ttl_ms=1000, **about)
    ((_, told),) = payloads.lay_aside([(request, Ok(PICTURE, b'"a":1', raw=True))])
    assert told == Ok(AS_TEXT, b'"a":1')
    assert not blobs.blobs


def test_a_worker_without_a_store_says_so(make: Make) -> None:
    rig = Rig()
    ref = reference_to(ONE, b'"large"', "json")
    rig.put_raw(our_message(ONE, ref.json), Tier.PAID)
    rig.start()
    try:
        assert "no store" in rig.error(ONE)[0].text
    finally:
        rig.close()


def test_a_stored_result_with_a_reference_reads_like_any_other() -> None:
    ref = reference_to("a-blob-id", b"[]", "json")
    raw = b'{"status":"SUCCESS","result":%b,"task_id":"t"}' % ref.json
    assert read_reference(bytes(decode_reply(raw).result)) == ref

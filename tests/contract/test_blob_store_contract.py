"""The contract of a store of blobs, for the real one and its twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256

import msgspec
import pytest
from blake3 import blake3
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from redis import Redis

from batching.blobs.reference import BlobRef, NotAReferenceError, read_reference, reference_to
from batching.blobs.store import BlobGoneError, BlobStore, NoRoomError, RedisBlobs, Room
from config.redis_bytes import PART_BYTES, WHOLE_BYTES
from tests.fakes.blobs import MemoryBlobs
from tests.waiting import wait_until

HOUR_MS = 3_600_000
Make = Callable[[Room], BlobStore]


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    if request.param == "memory":
        yield MemoryBlobs
        return
    redis: Redis = request.getfixturevalue("redis")
    made: list[RedisBlobs] = []

    def with_room(room: Room) -> BlobStore:
        redis.flushdb()
        made.append(RedisBlobs(redis, room=room))
        return made[-1]

    yield with_room
    for each in made:
        each.close()


@pytest.fixture
def blobs(make: Make) -> BlobStore:
    return make(Room(max_bytes=32 * 1024 * 1024))


def put(blobs: BlobStore, name: str, value: bytes, ttl_ms: int = HOUR_MS) -> BlobRef:
    ref = reference_to(name, value, "bytes")
    blobs.put(ref, value, ttl_ms)
    return ref


@pytest.mark.parametrize("size", [1, 511, 512, PART_BYTES, WHOLE_BYTES, WHOLE_BYTES + 1, 3 * PART_BYTES])
def test_what_is_put_is_read_whatever_its_bytes(blobs: BlobStore, size: int) -> None:
    value = (bytes(range(256)) + b"\r\n$5\r\n") * (size // 262 + 1)
    ref = put(blobs, "the-blob", value[:size])
    for _ in range(2):
        assert blobs.get(ref) == value[:size]
    assert blobs.usage() == (1, size, 0)


def test_a_part_of_a_buffer_is_put_as_it_is(blobs: BlobStore) -> None:
    view = memoryview(b"head" + b"x" * 100_000)[4:]
    ref = reference_to("the-blob", view, "bytes")
    blobs.put(ref, view, HOUR_MS)
    assert blobs.get(ref) == b"x" * 100_000


def test_another_value_under_the_same_name_is_not_what_was_meant(blobs: BlobStore) -> None:
    ref = put(blobs, "the-blob", b"first")
    put(blobs, "the-blob", b"other")
    with pytest.raises(BlobGoneError):
        blobs.get(ref)
    for size in (4, 6):
        with pytest.raises(BlobGoneError):
            blobs.get(BlobRef(ref.id, size, ref.digest, "bytes"))
    # What is left of a longer value is no part of the next reply.
    assert blobs.get(put(blobs, "next-blob", b"next")) == b"next"


def test_a_plain_client_may_give_the_hash_that_its_language_has(blobs: BlobStore) -> None:
    put(blobs, "client-blob", b"value")
    assert blobs.get(BlobRef("client-blob", 5, sha256=sha256(b"value").hexdigest())) == b"value"
    with pytest.raises(BlobGoneError):
        blobs.get(BlobRef("client-blob", 5, sha256=blake3(b"value").hexdigest()))


def test_a_reference_has_one_hash() -> None:
    digest = "0" * 64
    for given in ({}, {"blake3": digest, "sha256": digest}):
        with pytest.raises(NotAReferenceError):
            read_reference(msgspec.json.encode({"$blob": {"id": "client-blob", "size": 5, **given}}))


def test_released_is_gone_and_may_be_released_again(blobs: BlobStore) -> None:
    refs = [put(blobs, f"blob-{i:04}", b"x" * (i + 1)) for i in range(3)]
    assert blobs.release([refs[0].id, refs[2].id, "never-was"]) == 2
    assert blobs.release([refs[0].id, refs[2].id]) == 0
    assert blobs.get(refs[1]) == b"xx"
    with pytest.raises(BlobGoneError):
        blobs.get(refs[2])
    assert blobs.usage() == (1, 2, 0)


def test_it_goes_by_itself_and_leaves_no_account_of_it(blobs: BlobStore) -> None:
    ref = put(blobs, "the-blob", b"x", ttl_ms=1)

    def is_gone() -> bool:
        try:
            blobs.get(ref)
        except BlobGoneError:
            return True
        return False

    # In the millisecond of its end the account has forgotten it, and Redis still has it.
    wait_until(lambda: blobs.usage().blobs == 0 and is_gone(), what="it has expired")
    assert blobs.usage() == (0, 0, 0)
    assert not blobs.extend(ref.id, HOUR_MS, keep=True)


def test_no_more_than_there_is_room_for(make: Make) -> None:
    blobs = make(Room(max_bytes=100))
    put(blobs, "a" * 8, b"x" * 60)
    with pytest.raises(NoRoomError):
        put(blobs, "b" * 8, b"x" * 41)
    put(blobs, "b" * 8, b"x" * 40)
    # Written once more after a failover, it takes the same room.
    put(blobs, "a" * 8, b"x" * 60)
    assert blobs.usage() == (2, 100, 0)
    blobs.release(["b" * 8])
    put(blobs, "c" * 8, b"x" * 40)


def test_dead_letters_have_a_part_of_the_room_and_the_oldest_go(make: Make) -> None:
    blobs = make(Room(max_bytes=100, max_kept_bytes=50))
    refs = [put(blobs, f"letter-{i}", b"x" * 20) for i in range(4)]
    assert all(blobs.extend(each.id, HOUR_MS, keep=True) for each in refs[:2])
    assert blobs.usage() == (4, 80, 40)
    assert blobs.extend(refs[2].id, HOUR_MS, keep=True)
    assert blobs.usage() == (3, 60, 40)
    with pytest.raises(BlobGoneError):
        blobs.get(refs[0])
    # Queued again it is no dead letter's any more.
    assert blobs.extend(refs[1].id, HOUR_MS, keep=False)
    assert blobs.usage() == (3, 60, 20)
    large = put(blobs, "the-large", b"x" * 40)
    blobs.release([refs[3].id])
    assert blobs.extend(large.id, HOUR_MS, keep=True)
    # One that has no room among them, even alone, is not kept.
    larger = put(make(Room(max_bytes=100, max_kept_bytes=30)), "the-large", b"x" * 40)
    assert larger == large


def test_one_that_is_too_large_for_the_dead_letters_is_not_kept(make: Make) -> None:
    blobs = make(Room(max_bytes=100, max_kept_bytes=30))
    large = put(blobs, "the-large", b"x" * 40)
    assert not blobs.extend(large.id, HOUR_MS, keep=True)
    assert blobs.usage() == (0, 0, 0)


def test_another_time_is_an_earlier_one_too(blobs: BlobStore) -> None:
    ref = put(blobs, "the-blob", b"x")
    assert blobs.extend(ref.id, 1, keep=True)
    wait_until(lambda: blobs.usage() == (0, 0, 0), what="it has expired")


def test_the_account_is_right_after_any_calls(redis: Redis) -> None:
    """The real one beside its twin, through the same calls."""

    class Both(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            redis.flushdb()
            room = Room(max_bytes=60, max_kept_bytes=30)
            self.real, self.twin = RedisBlobs(redis, room=room), MemoryBlobs(room)

        names = st.sampled_from([f"blob-{i:03}" for i in range(5)])

        def of_both(self, call: Callable[[BlobStore], object]) -> None:
            ends = []
            for each in (self.real, self.twin):
                try:
                    ends.append(call(each))
                except (NoRoomError, BlobGoneError) as error:
                    ends.append(type(error))
            assert ends[0] == ends[1]

        @rule(name=names, size=st.integers(1, 40))
        def put(self, name: str, size: int) -> None:
            self.of_both(lambda blobs: put(blobs, name, b"x" * size))

        @rule(name=names)
        def release(self, name: str) -> None:
            self.of_both(lambda blobs: blobs.release([name]))

        @rule(name=names, keep=st.booleans())
        def extend(self, name: str, keep: bool) -> None:
            self.of_both(lambda blobs: blobs.extend(name, HOUR_MS, keep=keep))

        @rule(name=names, size=st.integers(1, 40))
        def get(self, name: str, size: int) -> None:
            self.of_both(lambda blobs: blobs.get(reference_to(name, b"x" * size, "bytes")))

        @invariant()
        def the_accounts_agree(self) -> None:
            assert self.real.usage() == self.twin.usage()
            names = list(redis.scan_iter("bunch:blob:*"))
            assert {each.decode().removeprefix("bunch:blob:") for each in names} == set(self.twin.blobs)
            assert all(redis.pttl(each) > 0 for each in names)

        def teardown(self) -> None:
            self.real.close()

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Both, settings=settings(max_examples=25, stateful_step_count=25, deadline=None)
    )

"""Payloads of processes that share memory: what is read where, and what needs no copy in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from batching.blobs.local_files import LocalFiles, LocalPayload
from batching.blobs.local_first import ElsewhereError, LocalFirst, files_of
from batching.blobs.reference import BlobRef, read_reference
from batching.blobs.store import BlobGoneError
from batching.claim.payloads import Payloads
from batching.request import Ok, Request
from config.keys import Shard
from config.settings import Settings
from config.tiers import Tier
from tasks.client.nearby import Nearby, NearbyWorkers
from tests.fakes.blobs import MemoryBlobs

HOUR_MS = 3_600_000
VALUE = b"x" * 100_000
CHANNEL = "bunch:reply:frontend-1"
ID = "11111111-1111-8111-a111-111111111111"


class Machine:
    """A frontend and a worker of one machine, and a worker of another one; Redis is the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.redis = MemoryBlobs()
        self._made: list[LocalFirst] = []
        self.frontend = self.store(CHANNEL, "here")
        self.worker = self.store("worker-1", "here")
        self.far = self.store("worker-2", "there")

    def store(self, mark: str, machine: str) -> LocalFirst:
        (self.path / machine).mkdir(exist_ok=True)
        made = LocalFirst(self.redis, LocalFiles("redis://a", 1 << 20, parent=self.path / machine))
        made.files.open(mark)
        self._made.append(made)
        return made

    def send(self, name: str = ID, *, near: bool = True, alone: bool = False) -> BlobRef:
        """As a frontend does."""
        ref = self.frontend.write_near(name, VALUE, "bytes", HOUR_MS, near=near, alone=alone)
        if ref.near is not True:
            self.frontend.put(ref, VALUE, HOUR_MS)
        return cast("BlobRef", read_reference(ref.json))

    def close(self) -> None:
        for each in self._made:
            each.files.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()
    assert not [each for parent in tmp_path.iterdir() for each in parent.iterdir()]


def test_the_worker_of_the_machine_fetches_nothing_and_another_does(machine: Machine) -> None:
    ref = machine.send()
    assert ref.near is msgspec.UNSET
    assert bytes(machine.far.get(ref)) == VALUE
    machine.redis.before = fail
    payload = machine.worker.get(ref)
    assert isinstance(payload, LocalPayload)
    assert bytes(payload) == VALUE


def fail(call: str) -> None:
    raise RedisConnectionError(call)


def test_without_its_file_the_copy_in_redis_is_read(machine: Machine) -> None:
    ref = machine.send()
    machine.frontend.files.release([ref.id])
    assert bytes(machine.worker.get(ref)) == VALUE


def test_no_worker_near_no_file(machine: Machine) -> None:
    ref = machine.send(near=False)
    assert machine.frontend.files.used_bytes() == 0
    assert bytes(machine.worker.get(ref)) == VALUE


def test_released_is_gone_from_both(machine: Machine) -> None:
    ref = machine.send()
    assert machine.worker.release([ref.id]) == 1
    assert machine.frontend.files.used_bytes() == 0
    with pytest.raises(BlobGoneError):
        machine.worker.get(ref)


def test_what_only_a_waiting_caller_would_miss_is_in_memory_alone(machine: Machine) -> None:
    ref = machine.send(alone=True)
    assert ref.near is True
    assert not machine.redis.blobs
    assert bytes(machine.worker.get(ref)) == VALUE
    with pytest.raises(ElsewhereError):
        machine.far.get(ref)
    machine.worker.release([ref.id])
    with pytest.raises(ElsewhereError):
        machine.worker.get(ref)


def test_what_others_may_ask_for_is_in_redis_too(machine: Machine) -> None:
    ref = machine.send(alone=False)
    assert ref.near is msgspec.UNSET
    assert machine.redis.blobs == {ID: VALUE}
    assert bytes(machine.far.get(ref)) == VALUE


def test_no_room_in_memory_sends_it_to_redis(machine: Machine) -> None:
    refs = [machine.send(f"request-{n}", alone=True) for n in range(14)]
    gone = [each for each in refs if each.near is not True]
    assert gone
    assert {each.id for each in gone} == set(machine.redis.blobs)
    assert all(bytes(machine.worker.get(each)) == VALUE for each in refs)
    machine.worker.release([each.id for each in refs])


def test_a_dead_letter_takes_its_payload_to_redis(machine: Machine) -> None:
    ref = machine.send(alone=True)
    assert machine.worker.extend(ref.id, HOUR_MS, keep=True)
    assert machine.redis.blobs == {ID: VALUE}
    assert not machine.worker.extend("never-was", HOUR_MS, keep=True)
    machine.frontend.files.release([ref.id])


def test_a_small_payload_is_read_and_not_passed_on(machine: Machine) -> None:
    ref = machine.frontend.write_near(ID, b"x" * 2000, "bytes", HOUR_MS, near=True)
    assert machine.worker.get(ref) == b"x" * 2000


def request(**about: object) -> Request:
    made = Request(ID, Tier.PAID, 0, b"1", b"{}", reply_to=CHANNEL, tracked=False, result_ttl_ms=60_000)
    for name, value in about.items():
        setattr(made, name, value)
    return made


def worker_of(store: LocalFirst) -> Payloads:
    about = {"inline_bytes": 1000, "result_ttl_ms": HOUR_MS, "letter_ttl_ms": HOUR_MS}
    return Payloads(lambda _: store._blobs, store.files, **about)


def laid(payloads: Payloads, about: Request) -> BlobRef:
    ((_, told),) = payloads.lay_aside([(about, Ok(b'"' + VALUE + b'"'))])
    assert isinstance(told, Ok)
    ref = read_reference(told.output)
    assert ref is not None
    return ref


def test_an_output_goes_back_the_same_way(machine: Machine) -> None:
    ref = laid(worker_of(machine.worker), request())
    assert ref.near is True
    assert bytes(machine.frontend.get(ref)) == b'"' + VALUE + b'"'
    assert not machine.redis.blobs
    machine.frontend.release([ref.id])


@pytest.mark.parametrize("about", [{"tracked": True}, {"question": "q"}, {"keep_ms": 1}, {"reply_to": "bunch:reply:x"}])
def test_an_output_that_others_may_read_is_in_redis(machine: Machine, about: dict[str, object]) -> None:
    ref = laid(worker_of(machine.worker), request(**about))
    assert ref.near is msgspec.UNSET
    assert ref.id in machine.redis.blobs
    assert not machine.worker.files.used_bytes()


def test_an_output_that_cannot_be_stored_leaves_no_file(machine: Machine) -> None:
    machine.redis.before = fail
    ((_, told),) = worker_of(machine.worker).lay_aside([(request(tracked=True), Ok(b'"' + VALUE + b'"'))])
    assert told == Ok(b'"' + VALUE + b'"')
    assert not machine.worker.files.used_bytes()


def test_a_worker_of_another_machine_leaves_it_to_those_near(machine: Machine) -> None:
    ref = machine.send(alone=True)
    about = request(blob=ref, input=ref.json)
    inputs = worker_of(machine.far).read([about], 0.0)
    assert [each for each, _ in inputs.later] == [about]
    assert not inputs.settled
    assert worker_of(machine.worker).read([about], 0.0).run == [about]
    machine.worker.release([ref.id])


class Registry:
    """Redis, with the workers that there are."""

    def __init__(self) -> None:
        self.workers: list[bytes] = []
        self.asked = 0
        self.error: Exception | None = None

    def zrange(self, key: str, first: int, last: int) -> list[bytes]:
        assert key == Shard().workers()
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.workers


def test_a_frontend_knows_which_workers_are_near(machine: Machine) -> None:
    now = 0.0
    registry = Registry()
    nearby = NearbyWorkers(cast("Redis", registry), Shard(), machine.frontend.files, lambda: now)

    def found(*workers: bytes) -> Nearby:
        nonlocal now
        now += 2.0
        registry.workers = list(workers)
        return nearby.look()

    assert found() is Nearby.NONE
    assert found(b"worker-2") is Nearby.NONE
    assert found(b"worker-1") is Nearby.ALL
    assert found(b"worker-1", b"worker-2") is Nearby.SOME
    asked = registry.asked
    registry.workers = []
    assert nearby.look() is Nearby.SOME
    assert registry.asked == asked
    registry.error = RedisConnectionError("away")
    assert found(b"worker-1") is Nearby.NONE
    # Without shared memory nobody is asked.
    other = NearbyWorkers(cast("Redis", registry), Shard(), LocalFiles("", 0))
    asked = registry.asked
    assert other.look() is Nearby.NONE
    assert registry.asked == asked


def test_roles_with_other_passwords_share_a_folder() -> None:
    def path(url: str, blobs: str = "") -> Path:
        return files_of(Settings(redis_url=url, blob_url=blobs)).path

    assert path("redis://web:a@h:1/0") == path("redis://worker:b@h:1/0") != path("redis://h:1/1")
    assert path("redis://h:1/0") != path("redis://h:1/0", "redis://other:1")
    assert path("unix:///a.sock") != path("unix:///b.sock")


def test_one_process_shares_memory_with_nobody() -> None:
    assert not files_of(Settings(mode="collocated")).open()

"""The contract of a batch store: the bytes of a batch, and who shares them."""

from __future__ import annotations

from itertools import chain

from batching.claim.store import Blame
from config.schema import MAX_BATCH_BYTES
from config.tiers import Tier
from tests.fakes.worlds import (
    MODEL,
    World,
    foreign,
    names,
    ours,
)


def test_megabytes_of_one_key_do_not_make_another_key_wait(world: World) -> None:
    filling = b"x" * (3 * MAX_BATCH_BYTES // 8)
    for number in range(10):
        world.put(ours(f"a{number}", key="aaaaaaaa")[:-1] + b',"more":"' + filling + b'"}', Tier.PAID)
    for number in range(3):
        world.put(ours(f"b{number}", key="bbbbbbbb"), Tier.PAID)
    claims = [names(world.store.claim(MODEL, f"batch{number}", 64)) for number in range(6)]
    assert claims == [["a0", "b0", "b1", "b2", "a1"], ["a2", "a3"], ["a4", "a5"], ["a6", "a7"], ["a8", "a9"], []]


def test_keys_that_alternate_are_shared_by_bytes_too(world: World) -> None:
    filling = b"x" * (3 * MAX_BATCH_BYTES // 4)
    for number in range(6):
        world.put(ours(f"{number}", key="ab"[number % 2] * 8)[:-1] + b',"more":"' + filling + b'"}', Tier.PAID)
    world.put(ours("small", key="cccccccc"), Tier.PAID)
    assert names(world.store.claim(MODEL, "batch", 64)) == ["0", "small"]


def test_a_suspect_that_was_cancelled_leaves_the_other_queues_alone(world: World) -> None:
    for name in "ab":
        world.put(ours(name), Tier.ENTERPRISE)
    world.put(ours("c"), Tier.FREE)
    world.store.claim(MODEL, "b1", 2)
    world.store.give_back(MODEL, "b1", Blame.SUSPECT)
    world.cancel("a")
    claims = [names(world.store.claim(MODEL, f"again{number}", 8)) for number in range(4)]
    assert sorted(chain(*claims)) == ["a", "b", "c"]


def test_bytes_of_others_do_not_make_the_oldest_wait_for_ever(world: World) -> None:
    def of(size: int, name: str, key: str) -> bytes:
        return ours(name, key=key * 8)[:-1] + b',"more":"' + b"x" * size + b'"}'

    world.put(of(MAX_BATCH_BYTES // 2, "a", "a"), Tier.PAID)
    for number in range(8):
        world.put(of(MAX_BATCH_BYTES // 5, f"b{number}", "b"), Tier.PAID)
    assert names(world.store.claim(MODEL, "batch", 4)) == ["a", "b0", "b1"]


def test_two_keys_with_many_do_not_starve_the_large_one_of_a_third(world: World) -> None:
    def of(size: int, name: str, key: str) -> bytes:
        return ours(name, key=key * 8)[:-1] + b',"more":"' + b"x" * size + b'"}'

    for number in range(40):
        if number == 3:
            world.put(of(MAX_BATCH_BYTES * 3 // 4, "large", "c"), Tier.PAID)
        world.put(of(MAX_BATCH_BYTES // 10, f"{number}", "ab"[number % 2]), Tier.PAID)
    claims: list[list[str]] = []
    while not claims or claims[-1]:
        claims.append(names(world.store.claim(MODEL, f"batch{len(claims)}", 64)))
    assert sorted(chain(*claims)) == sorted(["large", *map(str, range(40))])
    assert "large" in claims[1]
    for key in (0, 1):
        order = [int(each) for each in chain(*claims) if each != "large" and int(each) % 2 == key]
        assert order == sorted(order)


def test_a_claim_reads_so_many_bytes_and_no_more(world: World) -> None:
    filling = b"x" * MAX_BATCH_BYTES
    for number in range(12):
        world.put(ours(f"a{number:02d}", key="aaaaaaaa")[:-1] + b',"more":"' + filling + b'"}', Tier.PAID)
    world.put(ours("b0", key="bbbbbbbb"), Tier.PAID)
    claims = [names(world.store.claim(MODEL, f"batch{number:02d}", 4)) for number in range(13)]
    assert sorted(chain(*claims)) == [*(f"a{number:02d}" for number in range(12)), "b0"]
    assert [each for each in chain(*claims) if each != "b0"] == [f"a{number:02d}" for number in range(12)]
    assert all(len(each) <= 2 for each in claims)


def test_a_batch_has_so_many_bytes_or_one_message(world: World) -> None:
    large = b'"' + b"x" * (3 * MAX_BATCH_BYTES // 8) + b'"'
    for name in "abc":
        world.put(b'{"body": %s, "headers": {"id": "%s"}}' % (large, name.encode()), Tier.PAID)
    world.put(b'{"body": "%s", "headers": {"id": "d"}}' % (b"x" * 2 * MAX_BATCH_BYTES), Tier.PAID)
    world.put(foreign("e"), Tier.PAID)
    sizes = [len(world.store.claim(MODEL, f"b{number}", 8).entries) for number in range(4)]
    assert sizes == [2, 1, 1, 1]
    world.put(foreign("f"), Tier.PAID)
    world.put(foreign("g"), Tier.PAID)
    assert len(world.store.claim(MODEL, "b4", 8, max_bytes=1).entries) == 1
    assert len(world.store.claim(MODEL, "b5", 8, max_bytes=1).entries) == 1
    assert world.queued(Tier.PAID) == []

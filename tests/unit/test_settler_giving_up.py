"""A worker that stops while Redis is away: what it could not store is left to the next holder of the lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from batching.claim.settler import Settler
from batching.claim.slices import SMALL_BYTES
from batching.claim.store import Settled
from batching.coalescing import Finished
from batching.policy import Reason, RetryPolicy
from batching.ports import BatchInfo, NullObserver
from batching.request import Failed, Ok, Request
from config.tiers import Tier
from tasks.protocol.results import CeleryCodec

INFO = BatchInfo("b", "m", "1", 3, Reason.FULL, 0, compute_s=0.1)


class Store:
    """Fails at one call, the first or a later one, and notes whether the lease was dropped."""

    def __init__(self, fails_at: int) -> None:
        self._left = fails_at
        self.dropped = False
        self.stored: list[str] = []

    def finish(self, batch_id: str, outcomes: Sequence[Settled], *, last: bool) -> Finished:
        self._count(last)
        self.stored += [each.task_id for each in outcomes]
        return Finished(True)

    def put_aside(self, *_: Any, last: bool, count_attempt: bool = True) -> bool:
        self._count(last)
        return True

    def _count(self, last: bool) -> None:
        self._left -= 1
        if self._left == 0:
            raise RedisConnectionError("away for a moment")
        self.dropped = self.dropped or last


class NoFollowUp:
    def follow(self, *_: Any) -> None:
        """Send nothing."""


def request(name: str, position: int, *, canvas: bytes = b"") -> Request:
    return Request(name, Tier.PAID, position, b"1", b"{}", result_ttl_ms=1000, canvas=canvas)


SMALL, LARGE = Ok(b"1"), Ok(b'"' + b"x" * 2 * SMALL_BYTES + b'"')
AGAIN = Failed("later", retryable=True)


def small_and_large(settler: Settler) -> None:
    settler.settle([(request("large", 1), LARGE), (request("small", 2), SMALL)], INFO, last=True)


def again_and_done(settler: Settler) -> None:
    settler.settle([(request("again", 1), AGAIN), (request("done", 2), SMALL)], INFO, last=True)


def followed_and_plain(settler: Settler) -> None:
    settler.settle([(request("plain", 1), SMALL), (request("followed", 2, canvas=b"{}"), SMALL)], INFO, last=True)


def early_and_run(settler: Settler) -> None:
    settler.postpone([(request("early", 1), 0)], INFO, last=False)
    settler.settle([(request("run", 2), SMALL)], INFO, last=True)


@pytest.mark.parametrize("part", [small_and_large, again_and_done, followed_and_plain, early_and_run])
@pytest.mark.parametrize("fails_at", [1, 2])
def test_the_lease_stays_when_one_part_was_given_up(part: Callable[[Settler], None], fails_at: int) -> None:
    store = Store(fails_at)
    settler = Settler(
        *("m/0", "m", store, CeleryCodec(1000), NullObserver(), RetryPolicy(3), NoFollowUp())  # type: ignore[arg-type]
    )
    settler.give_up_on_redis()
    part(settler)
    assert not store.dropped


def test_the_lease_ends_when_all_was_stored() -> None:
    store = Store(99)
    settler = Settler(
        *("m/0", "m", store, CeleryCodec(1000), NullObserver(), RetryPolicy(3), NoFollowUp())  # type: ignore[arg-type]
    )
    settler.give_up_on_redis()
    small_and_large(settler)
    assert store.dropped
    assert store.stored == ["small", "large"]

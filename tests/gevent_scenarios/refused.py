"""A refused request leaves of its large input nothing, in Redis and in shared memory; the scenario is the worker.

Refusals that are known before are told before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import structs

from batching.blobs.local_files import LocalFiles
from config.tiers import Tier
from tasks.client.pending import Pending
from tasks.client.sharded_client import AnyClient
from tasks.client.submission import Submission
from tasks.errors import (
    BackendUnavailable,
    BunchError,
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidInput,
    RateLimited,
    ServiceOverloaded,
    ShuttingDown,
)
from tasks.protocol.caller import Caller
from tests.gevent_scenarios.beside import LARGE, names
from tests.gevent_scenarios.frontend_fixture import (
    ANN,
    KEPT,
    NOBODY,
    SMALL,
    FrontendFixture,
    asking,
    clients_of,
    error_of,
)
from tests.gevent_scenarios.nearby import near
from tests.gevent_scenarios.resent import FORGETFUL, server
from tests.waiting import wait_until

INPUT = msgspec.json.encode(LARGE)
POLLED: dict[str, Any] = {"waits": False}
"""Such inputs go to Redis too."""
WAYS: tuple[dict[str, Any], ...] = ({}, POLLED)


class Writes:
    """Records what a client writes for payloads."""

    def __init__(self, client: AnyClient) -> None:
        self.count = 0
        for each in clients_of(client):
            blobs: Any = each._payloads._blobs
            write = blobs.write_near

            def counted(*args: Any, write: Callable[..., Any] = write, **options: Any) -> Any:
                self.count += 1
                return write(*args, **options)

            blobs.write_near = counted


@contextmanager
def watched(frontend: FrontendFixture) -> Iterator[tuple[AnyClient, Writes, LocalFiles]]:
    with near(frontend) as (client, worker):
        yield client, Writes(client), worker._files


def refused(client: AnyClient, submission: Submission) -> BunchError:
    pending = client.submit(submission)
    found = error_of(lambda: client.wait(pending) if submission.waits else client.receipt(pending))
    assert isinstance(found, BunchError)
    return found


def left(frontend: FrontendFixture, files: LocalFiles) -> tuple[int, int, int]:
    account = sum(int(frontend.redis.hget(each.blob_bytes(), "all") or 0) for each in frontend.keys)
    return len(names(frontend)), account, files.used_bytes()


def nothing_is_left(frontend: FrontendFixture, files: LocalFiles) -> None:
    wait_until(lambda: left(frontend, files) == (0, 0, 0), what="nothing of it is left")


def a_full_queue_is_told_before_anything_is_written(frontend: FrontendFixture) -> None:
    with watched(frontend) as (client, writes, files):
        for n in range(3):
            client.submit(asking(SMALL, b"%d" % n, caller=ANN))
        wait_until(lambda: frontend.depth(SMALL) == 3)
        for options in (*WAYS, {"request_id": "mine"}):
            error = refused(client, asking(SMALL, INPUT, caller=ANN, **options))
            assert isinstance(error, ServiceOverloaded)
            assert error.retry_after_s
        assert (writes.count, left(frontend, files)) == (0, (0, 0, 0))
        assert frontend.depth(SMALL) == 3


def a_spent_rate_is_told_before_anything_is_written(frontend: FrontendFixture) -> None:
    caller = Caller("k", "o", Tier.PAID, rpm=1, burst=1)
    with watched(frontend) as (client, writes, files):
        client.submit(asking(NOBODY, b"1", caller=caller))
        wait_until(lambda: frontend.depth() == 1)
        # A repeat counts too, whatever it would get.
        for model, key in ((NOBODY, ""), (NOBODY, "k"), (KEPT, "")):
            error = refused(client, asking(model, INPUT, caller=caller, idempotency_key=key))
            assert isinstance(error, RateLimited)
            assert error.limits is not None
        assert (writes.count, left(frontend, files)) == (0, (0, 0, 0))


def to_ask_costs_no_quota_and_no_place(frontend: FrontendFixture) -> None:
    caller = Caller("k", "o", Tier.PAID, rpm=600, burst=2)
    with watched(frontend) as (client, _, _):
        for n in range(2):
            client.submit(asking(NOBODY, msgspec.json.encode(f"{LARGE}{n}"), caller=caller))
        wait_until(lambda: frontend.depth() == 2)
    pendings = [frontend.client.submit(asking(SMALL, INPUT, caller=ANN)) for _ in range(3)]
    wait_until(lambda: frontend.depth(SMALL) == 3)
    assert not any(each.done for each in pendings)


def many_are_asked_for_at_once(frontend: FrontendFixture) -> None:
    with watched(frontend) as (client, writes, files):
        client.submit(asking(SMALL, b"1", caller=ANN))
        wait_until(lambda: frontend.depth(SMALL) == 1)
        pendings = [client.submit(asking(SMALL, INPUT, caller=ANN)) for _ in range(20)]
        wait_until(lambda: sum(each.done for each in pendings) == 18)
        assert all(isinstance(each.reply, ServiceOverloaded) for each in pendings if each.done)
        # Those of one call are judged together: it knows which two have room.
        assert writes.count < 20
        wait_until(lambda: left(frontend, files)[2] < 3 * len(INPUT))
        assert sum(each.outbox.preview.calls for each in clients_of(client)) < 20


def a_deadline_that_is_over_is_told_before_anything_is_written(frontend: FrontendFixture) -> None:
    with watched(frontend) as (client, writes, files):
        for options in WAYS:
            assert isinstance(refused(client, asking(NOBODY, INPUT, timeout_s=1e-9, **options)), DeadlineExceeded)
        assert (writes.count, left(frontend, files)) == (0, (0, 0, 0))


def another_request_under_a_key_leaves_nothing(frontend: FrontendFixture) -> None:
    with watched(frontend) as (client, _, files):
        client.submit(asking(NOBODY, b"1", idempotency_key="k", caller=ANN))
        wait_until(lambda: frontend.depth() == 1)
        for options in WAYS:
            error = refused(client, asking(NOBODY, INPUT, idempotency_key="k", caller=ANN, **options))
            assert isinstance(error, IdempotencyConflict)
        nothing_is_left(frontend, files)


def a_reference_of_a_callers_own_leaves_nothing(frontend: FrontendFixture) -> None:
    forged = msgspec.json.encode({"$blob": LARGE})
    with watched(frontend) as (client, writes, files):
        assert isinstance(refused(client, asking(NOBODY, forged)), InvalidInput)
        assert (writes.count, left(frontend, files)) == (0, (0, 0, 0))


def who_comes_while_it_shuts_down_leaves_nothing(frontend: FrontendFixture) -> None:
    with watched(frontend) as (client, writes, files):
        for each in clients_of(client):
            each._payloads._refusal = until_done
        client.refuse()
        for options in WAYS:
            assert isinstance(refused(client, asking(NOBODY, INPUT, **options)), ShuttingDown)
        assert (writes.count, left(frontend, files)) == (0, (0, 0, 0))


def until_done(pending: Pending, _: Submission) -> None:
    wait_until(lambda: pending.done)


def a_message_that_cannot_be_made_leaves_nothing(frontend: FrontendFixture) -> None:
    with watched(frontend) as (client, writes, files):
        for each in clients_of(client):
            each._writer.rest = broken  # type: ignore[method-assign]
        for options in WAYS:
            assert isinstance(refused(client, asking(NOBODY, INPUT, **options)), InvalidInput)
        assert writes.count == 2
        nothing_is_left(frontend, files)


def broken(*_: Any, **__: Any) -> bytes:
    raise InvalidInput("broken")


def no_room_leaves_no_file(frontend: FrontendFixture) -> None:
    frontend.settings = structs.replace(frontend.settings, blobs_max_bytes=1)
    with watched(frontend) as (client, writes, files):
        assert isinstance(refused(client, asking(NOBODY, INPUT, **POLLED)), RateLimited)
        assert writes.count == 1
        nothing_is_left(frontend, files)


def who_gives_up_before_the_flush_leaves_nothing(frontend: FrontendFixture) -> None:
    with watched(frontend) as (client, _, files):
        gone: list[Pending] = []
        for each in clients_of(client):
            put = each.outbox.put

            def late(out: Any, rest: bytes, pending: Pending, put: Callable[..., None] = put, **options: Any) -> None:
                put(out, rest, pending, **options)
                pending.settle(None)
                gone.append(pending)

            each.outbox.put = late  # type: ignore[method-assign]
        for options in WAYS:
            client.submit(asking(NOBODY, INPUT, **options))
        wait_until(lambda: len(gone) == 2)
        nothing_is_left(frontend, files)
        assert frontend.depth() == 0


def a_queue_that_is_away_leaves_nothing(_: FrontendFixture) -> None:
    # As with one server: with a cluster they would be held, and written meanwhile.
    with server(*FORGETFUL, failover_wait_ms=0) as (valkey, frontend), watched(frontend) as (client, writes, files):
        valkey.kill()
        for options in WAYS:
            assert isinstance(refused(client, asking(NOBODY, INPUT, **options)), BackendUnavailable)
        assert writes.count == 0
        assert not files.used_bytes()
        # It goes away after it was asked.
        for each in clients_of(client):
            each._payloads._refusal = lambda pending, submission: None
        assert isinstance(refused(client, asking(NOBODY, INPUT)), BackendUnavailable)
        assert writes.count == 1
        wait_until(lambda: not files.used_bytes(), what="its file is gone")

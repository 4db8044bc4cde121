"""Large inputs and outputs of a frontend that shares memory with its worker; the scenario is the worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
from msgspec import structs

from batching.blobs.local_first import files_of
from batching.claim.payloads import Payloads
from tasks.client.sharded_client import AnyClient
from tasks.protocol.outputs import PlacedBlobs
from tests.gevent_scenarios.beside import LARGE, names, turn
from tests.gevent_scenarios.frontend_fixture import ANN, NOBODY, SMALL, FrontendFixture, asking, output
from tests.gevent_scenarios.resent import FORGETFUL, replaced, server
from tests.waiting import wait_until

WORKER = "scenario-worker"
Durability = Literal["memory", "second"]


@contextmanager
def near(frontend: FrontendFixture, durability: Durability = "second") -> Iterator[tuple[AnyClient, Payloads]]:
    """A frontend, and the payloads of a worker of its machine, which is registered."""
    frontend.settings = structs.replace(frontend.settings, durability=durability)
    files = files_of(frontend.settings)
    files.open(WORKER)
    for each in frontend.keys:
        frontend.redis.zadd(each.workers(), {WORKER: 1.0})
    client = frontend.make_client()
    wait_until(lambda: client.connected)
    try:
        yield (
            client,
            Payloads(
                PlacedBlobs(frontend.places).of,
                files,
                result_ttl_ms=60_000,
                letter_ttl_ms=60_000,
            ),
        )
    finally:
        files.close()


def a_worker_near_does_not_fetch_what_redis_has_too(frontend: FrontendFixture) -> None:
    with near(frontend) as (client, worker):
        pending = client.submit(asking(NOBODY, msgspec.json.encode(LARGE), idempotency_key="a-key"))
        wait_until(lambda: frontend.depth() == 1)
        assert len(names(frontend)) == 1
        assert worker._files.used_bytes() > len(LARGE)
        # It is read from the file alone.
        frontend.redis.delete(*names(frontend))
        assert turn(frontend, payloads=worker) == 1
        assert output(client.wait(pending)) == LARGE
        wait_until(lambda: not worker._files.used_bytes(), what="the file is released")


def nothing_of_a_waiting_caller_goes_through_redis(frontend: FrontendFixture) -> None:
    with near(frontend) as (client, worker):
        pending = client.submit(asking(NOBODY, msgspec.json.encode(LARGE)))
        wait_until(lambda: frontend.depth() == 1)
        assert not names(frontend)
        assert turn(frontend, payloads=worker) == 1
        assert not names(frontend)
        assert output(client.wait(pending)) == LARGE
        wait_until(lambda: not worker._files.used_bytes(), what="all is released")


def it_survives_a_redis_that_forgets_everything(_: FrontendFixture) -> None:
    with server(*FORGETFUL) as (valkey, frontend), near(frontend) as (client, worker):
        frontend.client = client
        pending = client.submit(asking(NOBODY, msgspec.json.encode(LARGE)))
        wait_until(lambda: client.resendable_bytes > len(LARGE))
        assert not names(frontend)
        replaced(valkey, frontend)
        wait_until(lambda: frontend.depth() == 1)
        assert turn(frontend, payloads=worker) == 1
        assert output(client.wait(pending)) == LARGE
        # No worker was registered for a moment, so that it may have been written there after all.
        wait_until(lambda: not names(frontend) and not worker._files.used_bytes(), what="all is released")


def what_is_polled_for_is_in_redis_whatever_the_durability(frontend: FrontendFixture) -> None:
    with near(frontend, "memory") as (client, worker):
        task_id = client.receipt(client.submit(asking(NOBODY, msgspec.json.encode(LARGE), waits=False)))
        assert len(names(frontend)) == 1
        assert turn(frontend, payloads=worker) == 1
        for _ in range(2):
            reply = client.result(task_id)
            assert reply is not None
            assert output(reply) == LARGE
        assert not worker._files.used_bytes()


def with_a_worker_far_away_all_goes_through_redis_too(frontend: FrontendFixture) -> None:
    with near(frontend) as (client, _):
        for each in frontend.keys:
            frontend.redis.zadd(each.workers(), {"far-away": 1.0})
        pending = client.submit(asking(NOBODY, msgspec.json.encode(LARGE)))
        wait_until(lambda: frontend.depth() == 1)
        assert len(names(frontend)) == 1
        # The one that is far away takes it.
        assert turn(frontend) == 1
        assert output(client.wait(pending)) == LARGE


def a_worker_far_away_that_comes_later_gets_what_was_in_memory_alone(frontend: FrontendFixture) -> None:
    with near(frontend) as (client, _):
        pending = client.submit(asking(NOBODY, msgspec.json.encode(LARGE)))
        wait_until(lambda: frontend.depth() == 1)
        assert not names(frontend)
        for each in frontend.keys:
            frontend.redis.zadd(each.workers(), {"far-away": 1.0})
        wait_until(lambda: len(names(frontend)) == 1, what="it is in Redis, too")
        assert turn(frontend) == 1
        assert output(client.wait(pending)) == LARGE


def what_is_not_queued_leaves_no_file(frontend: FrontendFixture) -> None:
    with near(frontend) as (client, worker):
        for n in range(3):
            client.submit(asking(SMALL, b"%d" % n, caller=ANN))
        wait_until(lambda: frontend.depth(SMALL) == 3)
        refused = client.submit(asking(SMALL, msgspec.json.encode(LARGE), caller=ANN))
        wait_until(lambda: refused.done and not worker._files.used_bytes())


def the_last_one_removes_the_folder(frontend: FrontendFixture) -> None:
    with near(frontend) as (_, worker):
        path = worker._files.path
        assert path.is_dir()
    frontend.close()
    assert not path.exists()

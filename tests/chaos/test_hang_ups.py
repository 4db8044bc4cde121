"""A thousand clients hang up while their requests are queued: the model computes none of those."""

from __future__ import annotations

import json
import resource
import socket
import struct
from collections.abc import Iterator

import pytest
from redis import Redis

from config.tiers import Tier
from tests.chaos.stage import KEYS, Stage
from tests.e2e.client import Api
from tests.waiting import wait_until

CLIENTS = 1000
QUEUE = KEYS.queue("tally", Tier.PAID)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


@pytest.fixture
def crowd(whole: Stage) -> Iterator[list[socket.socket]]:
    """Connections of clients who have each sent a request and wait."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, CLIENTS + 500)), hard))
    connections: list[socket.socket] = []
    try:
        for number in range(CLIENTS):
            body = json.dumps({"model": "tally", "input": number, "timeout_ms": 120_000}).encode()
            connection = socket.create_connection(("127.0.0.1", whole.port), timeout=30)
            connection.sendall(
                b"POST /v1/inference HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            connections.append(connection)
        yield connections
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def closed_gate(whole: Stage) -> Iterator[Stage]:
    """The model computes nothing to its end."""
    whole.gate.unlink()
    whole.tally.write_bytes(b"")
    yield whole
    whole.gate.touch()


def seen_by_the_model(stage: Stage) -> int:
    return len(stage.tally.read_text().splitlines())


def claimed(redis: Redis) -> int:
    return sum(redis.llen(lease) - 1 for lease in redis.scan_iter("bunch:lease:*", 1000))


def saved(api: Api) -> float:
    lines = api.get("/metrics").body.decode().splitlines()
    name = 'bunch_cancelled_before_compute_total{model="tally"'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_what_nobody_waits_for_is_not_computed(closed_gate: Stage, crowd: list[socket.socket], api: Api) -> None:
    stage = closed_gate
    before = saved(api)
    with stage.redis() as redis:
        wait_until(
            lambda: redis.llen(QUEUE) + claimed(redis) == CLIENTS,
            what=lambda: f"of {CLIENTS}, {redis.llen(QUEUE)} wait, {claimed(redis)} are claimed; {stage.workers()}",
        )
        for number, connection in enumerate(crowd):
            if number % 2:
                # A reset instead of a farewell: the client's machine is gone.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        wait_until(lambda: redis.zcard(KEYS.cancelled()) == CLIENTS, what="all hang-ups are noticed")
        # One may have been claimed ahead until now.
        in_hand = claimed(redis)
        assert in_hand < 10
        stage.gate.touch()
        wait_until(lambda: not stage.left_in_redis(), what="the queue is empty")

    assert seen_by_the_model(stage) == in_hand
    wait_until(lambda: saved(api) - before == CLIENTS - in_hand, what="what was saved is counted")
    assert api.infer("still there", "tally").json["output"] == "still there"
    assert seen_by_the_model(stage) == in_hand + 1

"""Waiting costs next to nothing, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import time

import psutil
from redis import Redis

from cli.loadgen.load import Load, Run
from tests.e2e.client import Api
from tests.e2e.gate import EXECUTORS, Gate
from tests.e2e.stack import Stack
from tests.integration.http_server_harness import Client, post
from tests.waiting import wait_until

WAITING = 500
REQUESTS = 2_000
MIB = 1024 * 1024


def test_five_hundred_callers_who_wait_cost_nothing(stack: Stack, store: Redis, gate: Gate) -> None:
    frontends = stack.frontends()
    clients_of_redis = connections(store)
    gate.occupy()
    body = json.dumps({"input": gate.wish, "model": "moody"}).encode()
    request = post("/v1/inference", body, "Content-Type: application/json")
    clients = [Client(stack.port) for _ in range(WAITING)]
    try:
        for client in clients:
            client.send(request)
        wait_until(lambda: waiting(store) == WAITING + EXECUTORS, what="all of them wait")
        time.sleep(1.0)
        before = cpu_s(frontends)
        time.sleep(4.0)
        spent = cpu_s(frontends) - before
        assert waiting(store) == WAITING + EXECUTORS
        assert connections(store) <= clients_of_redis + 8
        gate.open()
        codes = {client.answer().status for client in clients}
    finally:
        for client in clients:
            client.close()
    assert codes <= {200, 504}
    # Measured: 0.07 s in these four seconds, both processes together.
    assert spent < 0.5


def test_what_times_out_leaves_nothing_behind(stack: Stack, store: Redis, api: Api) -> None:
    load(stack, REQUESTS // 4)
    clients, memory = connections(store), [each.memory_info().rss for each in stack.frontends()]
    for _ in range(2):
        codes = load(stack, REQUESTS)
        assert codes[504] >= REQUESTS / 5 * 0.9
        assert codes[200] >= REQUESTS * 4 / 5 * 0.9
        polls = [api.later(n, "slow", timeout_ms=2_000) for n in range(20)]
        assert all(api.result(each, wait_ms=20)["status"] for each in polls)
    wait_until(lambda: len(store.pubsub_channels("bunch:reply:*")) == 2, what="one reply channel for each frontend")

    wait_until(lambda: not store.pubsub_channels("celery-task-meta-*"), what="nobody listens for a result any more")
    wait_until(lambda: connections(store) <= clients + 4, what="no connection to Redis is left over")
    wait_until(lambda: not [key for key in store.keys("bunch.*") if store.llen(key)], what="nothing is queued")
    wait_until(lambda: not store.keys("bunch:lease:*"), what="nothing is leased")
    grown = [each.memory_info().rss - then for each, then in zip(stack.frontends(), memory, strict=True)]
    assert max(grown) < 16 * MIB


def waiting(store: Redis) -> int:
    """In the queue, or claimed."""
    return store.llen("bunch.moody.paid") + sum(store.llen(key) - 1 for key in store.keys("bunch:lease:*"))


def load(stack: Stack, requests: int) -> dict[int, int]:
    """A fifth of them for a model that is far too slow for their callers."""

    def body(number: int) -> bytes:
        if number % 5:
            return json.dumps({"input": number, "model": "echo"}).encode()
        return json.dumps({"input": number, "model": "slow", "timeout_ms": 40}).encode()

    run = Run()
    asyncio.run(Load(stack.url + "/v1/inference", body, timeout_s=60.0, run=run).closed(64, total=requests))
    codes = [answer.status for answer in run.answers]
    return {code: codes.count(code) for code in (*set(codes), 200, 504)}


def connections(store: Redis) -> int:
    return int(store.info("clients")["connected_clients"])


def cpu_s(processes: list[psutil.Process]) -> float:
    times = [each.cpu_times() for each in processes]
    return float(sum(each.user + each.system for each in times))

"""A cluster of three primaries loses one of them, and moves slots, while callers wait: each gets its own answer.

The long form has ten of each (`CHAOS_FAULTS`), and prints the time to the first answer of the shards that were hit.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cli.loadgen.load import Load, Run
from cli.supervisor.probes import get
from tests.chaos.callers import Callers, question
from tests.chaos.conftest import FAULTS
from tests.clusters import Clustered, Mover
from tests.e2e.stack import Stack
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

CALLERS = 300 if FAULTS else 60
TIMEOUT_S = 10.0
TIMES = min(FAULTS, 10) or 1
REQUESTS = 20_000 if FAULTS else 5_000
CONNECTIONS = 128
SHARDS = 16
CONFIG = """\
[models.steady]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 5, item_ms = 0.1 }
"""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240 + 120 * TIMES)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Clustered]:
    each = Clustered("--appendonly", "yes", replicas=True)
    try:
        yield each.start()
    finally:
        each.stop()


@pytest.fixture(scope="module")
def stack(nodes: Clustered, valkey: PrivateValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("cluster"), CONFIG)
    try:
        yield each.start(
            "--web-workers=2",
            "--workers=1",
            "--no-flower",
            redis_url=nodes.url,
            broker_url=valkey.url,
            # No rule may refuse a request here, and the queue's own limit is shorter than a failover.
            admission="off",
            queue_timeout_ms=10_000,
            failover_wait_ms=int(TIMEOUT_S * 1000),
        )
        each.stop()
    finally:
        each.kill()


def kill(nodes: Clustered, number: int) -> Callable[[], object]:
    nodes.kill(number)
    return lambda: nodes.run(number)


def hang(nodes: Clustered, number: int) -> Callable[[], object]:
    nodes.signal(number, signal.SIGSTOP)
    return lambda: nodes.signal(number, signal.SIGCONT)


def cut_link(nodes: Clustered, number: int) -> Callable[[], object]:
    nodes.cut_off(number)
    return lambda: nodes.join(number)


def planned(nodes: Clustered, number: int) -> Callable[[], object]:
    nodes.fail_over(number)
    return lambda: None


@pytest.mark.parametrize("fault", [kill, hang, cut_link, planned] if FAULTS else [kill])
def test_every_caller_gets_its_own_answer(
    nodes: Clustered, stack: Stack, fault: Callable[[Clustered, int], Callable[[], object]]
) -> None:
    firsts: list[float] = []
    with Callers(stack.url, "steady", count=CALLERS, pause_s=1.0, timeout_s=TIMEOUT_S) as callers:
        wait_until(lambda: len({each.shard for each in callers.told}) == SHARDS, what="all shards are used")
        for turn in range(TIMES):
            wait_until(nodes.is_whole, what="there are replicas to take over")
            victim = nodes.primaries()[turn % 3]
            hit = {number for number in range(SHARDS) if nodes.owner(f"{{s{number}}}") == victim}
            began = time.perf_counter()
            repair = fault(nodes, victim)

            def first(began: float = began, hit: set[int] = hit) -> float:
                fresh = (each for each in list(callers.told) if each.asked_at >= began and each.shard in hit)
                return min((each.told_at for each in fresh if each.code == "OK"), default=float("inf"))

            wait_for_replacement(nodes, victim)
            wait_until(lambda: first() < float("inf"), what="somebody is answered")
            firsts.append(first() - began)
            repair()
        told = len(callers.told)
        wait_until(lambda: len(callers.told) > told + CALLERS, what="the load goes on")

    callers.check()
    codes = Counter(each.code for each in callers.told)
    print(
        f"{fault.__name__}: {len(firsts)} times, {len(callers.told)} requests, {dict(codes)}, first answer of its "
        f"shards after {statistics.median(firsts):.2f} s (median), {max(firsts):.2f} s (worst); longest wait "
        f"{max(each.took_s for each in callers.told):.2f} s"
    )
    assert set(codes) == {"OK"}
    require_calm(stack)


def test_questions_get_their_own_answers_while_slots_move_and_a_node_is_lost(nodes: Clustered, stack: Stack) -> None:
    wait_until(nodes.is_whole, what="there are replicas to take over")
    run = Run(keep_bodies=True)

    def body(number: int) -> bytes:
        return json.dumps({"model": "steady", "input": question(number)}).encode()

    with troubled(nodes) as done:
        asyncio.run(
            Load(stack.url + "/v1/inference", body, timeout_s=TIMEOUT_S, run=run).closed(CONNECTIONS, total=REQUESTS)
        )
    codes = Counter(answer.status for answer in run.answers)
    print(f"{dict(codes)} while {dict(Counter(done))}")
    assert codes == {200: REQUESTS}
    assert sorted(answer.number for answer in run.answers) == list(range(REQUESTS))
    documents = [json.loads(answer.body) for answer in run.answers]
    assert all(each["output"] == question(run.answers[n].number) for n, each in enumerate(documents))
    assert len({each["task_id"] for each in documents}) == REQUESTS
    assert {"moved at once", "moved key by key", "killed"} <= set(done)
    require_calm(stack)


@contextmanager
def troubled(nodes: Clustered) -> Iterator[list[str]]:
    """Move a slot again and again, by turns at once and key by key, and kill a primary once in between."""
    done: list[str] = []
    over = threading.Event()

    def trouble() -> None:
        turn = 0
        while not over.wait(0.3) or len(done) < 3:
            tag = f"{{s{turn % SHARDS}}}"
            target = next(number for number in nodes.primaries() if number != nodes.owner(tag))
            if turn % 2:
                mover = Mover(nodes, tag, target)
                mover.begin()
                mover.move_keys()
                mover.end()
                done.append("moved key by key")
            else:
                nodes.move(tag, target)
                done.append("moved at once")
            turn += 1
            if turn == 2:
                victim = nodes.primaries()[0]
                nodes.kill(victim)
                wait_for_replacement(nodes, victim)
                nodes.run(victim)
                done.append("killed")
                wait_until(nodes.is_whole, what="it is a replica now")

    thread = threading.Thread(target=trouble)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def wait_for_replacement(nodes: Clustered, victim: int) -> None:
    wait_until(lambda: victim not in nodes.primaries(), what="its replica is the primary")


def require_calm(stack: Stack) -> None:
    about = json.loads(get("127.0.0.1", stack.port, "/healthz")[1])
    assert (about["waiting"], about["resendable_bytes"]) == (0, 0)
    assert stack.all_run()
    assert all(row.restarts == 0 for row in stack.rows())

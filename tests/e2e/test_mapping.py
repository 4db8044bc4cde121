"""Every answer belongs to its question."""

from __future__ import annotations

import asyncio
import json
import random

import psutil

from cli.loadgen.load import Load, Run
from tests.e2e.stack import Stack

REQUESTS = 20_000
CONNECTIONS = 256


def question(number: int) -> object:
    """Another one for each number, of many sizes and forms."""
    rng = random.Random(number)
    match number % 4:
        case 0:
            return number
        case 1:
            return f"{number} " + "x" * rng.randrange(2000)
        case 2:
            return [number, *(rng.random() for _ in range(rng.randrange(50)))]
        case _:
            return {"number": number, "text": "é" * rng.randrange(100)}


def test_twenty_thousand_questions_get_their_own_answers(stack: Stack) -> None:
    frontends = stack.frontends()
    before = [cpu_s(each) for each in frontends]
    run = Run(keep_bodies=True)

    def body(number: int) -> bytes:
        return json.dumps({"input": question(number)}).encode()

    load = Load(stack.url + "/v1/inference", body, timeout_s=60.0, run=run)
    asyncio.run(load.closed(CONNECTIONS, total=REQUESTS))

    assert {answer.status for answer in run.answers} == {200}
    assert sorted(answer.number for answer in run.answers) == list(range(REQUESTS))
    tasks, workers = set(), set()
    for answer in run.answers:
        document = json.loads(answer.body)
        assert document["output"] == question(answer.number)
        tasks.add(document["task_id"])
        workers.add(document["metadata"]["batch_id"].rsplit("-", 3)[-4].rsplit("-", 1)[-1])
    assert len(tasks) == REQUESTS
    assert {int(pid) for pid in workers} == set(stack.pids("worker"))
    # Both frontends had their share, and requests of both met in batches.
    spent = [cpu_s(each) - then for each, then in zip(frontends, before, strict=True)]
    assert len(spent) == 2
    assert min(spent) > max(spent) / 5
    assert sum(answer.batch_size for answer in run.answers) / REQUESTS > 4


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)

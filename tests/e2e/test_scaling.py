"""`manage.py autoscale` over the whole stack: what it exports, and a worker that it really adds and drains."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.client import Api
from tests.e2e.stack import Stack
from tests.waiting import wait_until


def test_a_worker_is_added_and_drained_and_nobody_notices(stack: Stack, api: Api) -> None:
    grown = stack.manage("autoscale", "--min", "3", "--duration", "0", "--json")
    assert grown.returncode == 0, grown.stderr
    assert json.loads(grown.stdout)["wanted"] == 3
    wait_until(lambda: len(stack.pids("worker")) == 3 and stack.all_run(), what="a third worker")
    third = stack.pids("worker")[-1]

    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(api.all, range(400), "moody")
        shrunk = stack.manage("autoscale", "--max", "2", "--duration", "0", "--json")
        assert shrunk.returncode == 0, shrunk.stderr
        assert json.loads(shrunk.stdout)["wanted"] == 2
        wait_until(lambda: third not in stack.pids("worker") and len(stack.pids("worker")) == 2, what="it to be gone")
        assert {answer.status for answer in answers.result()} == {200}


def test_the_decision_is_there_for_keda(stack: Stack, api: Api) -> None:
    stack.manage("autoscale", "--export-only", "--min", "2", "--max", "2", "--duration", "0")
    answer = api.get("/internal/scale")
    assert answer.status == 200
    assert answer.json["wanted"] == 2
    assert "bunch_workers_wanted 2.0" in api.get("/metrics").body.decode().splitlines()

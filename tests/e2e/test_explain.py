"""Where a request's time went: `explain`, the answer's metadata and its header; and the operators' other commands."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import Any

import pytest
from redis import Redis

from tasks.observability.explain import explain
from tests.e2e.client import Api
from tests.e2e.gate import Gate
from tests.e2e.stack import PATIENCE_S, ROOT, Stack
from tests.shards import places_of
from tests.waiting import wait_until

STAGES = ["admission", "queue", "batch_wait", "transfer", "compute", "reply"]


def explained(stack: Stack, request_id: str, code: int = 0) -> Any:
    """By the command, which takes a second to start."""
    done = stack.manage("explain", "--json", request_id)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def written(store: Redis, task_id: str) -> dict[str, Any]:
    """Once its batch is written down, which is a moment after the answer."""

    def look() -> dict[str, Any] | None:
        about = explain(places_of(store), ["quartet"], task_id)
        return about if about and (about["batch"] or {}).get("executor") else None

    wait_until(look, what="the batch is written down")
    return look() or {}


def test_every_millisecond_of_an_answer_has_a_name(api: Api) -> None:
    answer = api.post("/v1/inference", {"input": 1, "model": "simulated"})
    metadata = answer.json["metadata"]
    parts = [metadata[f"{stage}_ms"] for stage in STAGES]
    assert metadata["compute_ms"] >= 50
    assert min(parts) >= 0
    # Two clocks of whole milliseconds are in it.
    assert sum(parts) == pytest.approx(answer.json["latency_ms"], abs=3)
    timing = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers["server-timing"]))
    assert {stage: float(timing[stage]) for stage in STAGES} == pytest.approx(
        {stage: metadata[f"{stage}_ms"] for stage in STAGES}, abs=0.01
    )


@pytest.mark.parametrize(
    ("path", "document"),
    [("/v1/predict", {"model_id": "echo", "input_data": 1}), ("/api/inference", {"input": "a"})],
)
def test_answers_without_metadata_have_the_header(api: Api, path: str, document: dict[str, Any]) -> None:
    timing = api.post(path, document).headers["server-timing"]
    assert [each.partition(";")[0] for each in timing.split(", ")] == STAGES


def test_a_request_its_batch_and_its_neighbours(api: Api, stack: Stack, store: Redis) -> None:
    answers = [api.soon(n, "quartet") for n in range(4)]
    ids = {each.result().json["task_id"] for each in answers}
    metadata = answers[0].result().json["metadata"]
    for task_id in ids:
        about = written(store, task_id)
        assert (about["status"], about["model"], about["tier"], about["attempt"]) == ("completed", "quartet", "paid", 1)
        assert about["batch"]["reason"] == "full"
        assert {each["task_id"] for each in about["batch"]["neighbours"]} == ids - {task_id}
        assert {each["outcome"] for each in about["batch"]["neighbours"]} == {"OK"}
        assert [each["stage"] for each in about["stages"]] == STAGES
        assert about["accounted_ms"] == pytest.approx(sum(each["ms"] for each in about["stages"]), abs=0.01)
    assert explained(stack, answers[0].result().json["task_id"])["batch"]["id"] == metadata["batch_id"]
    people = stack.manage("explain", next(iter(ids)))
    assert people.returncode == 0
    for word in (*STAGES, "neighbour", "full"):
        assert word in people.stdout


def test_a_callers_own_id_finds_it_and_a_failure_says_why(api: Api, stack: Stack) -> None:
    api.post("/v1/inference", {"input": {"fail": "no luck \x1b]0;"}, "model": "moody"}, X_Request_Id="case-4711")
    about = explained(stack, "case-4711", code=1)
    assert (about["request_id"], about["status"]) == ("case-4711", "failed")
    assert about["error"]["code"] == "INFERENCE_FAILED"
    assert "no luck" in about["error"]["message"]
    # What an exception quotes does not steer the terminal.
    assert "no luck �]0;" in stack.manage("explain", "case-4711").stdout
    unknown = stack.manage("explain", "case-0")
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (1, 1)


def test_what_runs_and_what_waits_is_found(api: Api, store: Redis, gate: Gate) -> None:
    gate.occupy()
    waiting = [api.later(n, "moody") for n in range(3)]
    # Not by the command: it takes longer to start than they may wait.
    found = [explain(places_of(store), ["moody"], task_id) for task_id in (gate._held[0], *waiting)]
    gate.open()
    running, *queued = [each or {} for each in found]
    assert running["status"] == "running"
    assert "of worker" in running["where"]
    assert [each["where"] for each in queued] == [f"in bunch.moody.paid, {n} before it" for n in range(3)]


def test_pause_and_resume_from_the_command_line(api: Api, stack: Stack, store: Redis) -> None:
    paused = json.loads(stack.manage("pause", "shout", "--tier", "free", "--json").stdout)
    try:
        assert paused["paused"] == ["free"]
        assert len(paused["workers"]) == 2
        free = {"X_Tier": "free", "Prefer": "respond-async"}
        waiting = api.post("/v1/inference", {"input": "a", "model": "shout"}, **free).json["task_id"]
        assert api.infer("b", "shout").status == 200
        assert (explain(places_of(store), ["shout"], waiting) or {})["status"] == "queued"
        assert "paused" in stack.manage("queues").stdout
    finally:
        resumed = stack.manage("resume", "shout")
    assert resumed.returncode == 0
    assert api.post("/v1/inference", {"input": "a", "model": "shout"}, X_Tier="free").status == 200


def test_tune_is_followed_by_all_and_can_be_taken_back(api: Api, stack: Stack) -> None:
    tuned = json.loads(stack.manage("tune", "echo", "max_batch_size=5", "policy=idle", "--json").stdout)
    assert (tuned["max_batch_size"], tuned["policy"]) == (5, "idle")
    assert [each["ok"]["max_batch_size"] for each in tuned["workers"].values()] == [5, 5]
    (row,) = [each for each in json.loads(stack.manage("models", "--json").stdout) if each["model"] == "echo"]
    assert (row["max_batch_size"], row["tuned"]) == (5, {"max_batch_size": 5, "policy": "idle"})
    wrong = stack.manage("tune", "echo", "max_batch_size=many")
    assert wrong.returncode == 2
    assert "max_batch_size" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    back = json.loads(stack.manage("tune", "echo", "max_batch_size=", "policy=", "--json").stdout)
    assert (back["max_batch_size"], back["policy"], back["tuned"]) == (64, "adaptive", {})


def test_drain_one_worker_and_undo_it(api: Api, stack: Stack) -> None:
    assert stack.manage("drain", "worker1").returncode == 0
    try:
        states = {row["node"].partition("@")[0]: row["state"] for row in fleet(stack)}
        wait_until(lambda: {row["state"] for row in fleet(stack)} == {"running", "drained"}, what="it has drained")
        assert states["worker2"] == "running"
        assert api.infer("still served", "echo").status == 200
    finally:
        assert stack.manage("drain", "worker1", "--undo").returncode == 0
    wait_until(lambda: {row["state"] for row in fleet(stack)} == {"running"}, what="both work again")
    nobody = stack.manage("drain", "worker9")
    assert (nobody.returncode, len(nobody.stderr.splitlines())) == (1, 1)


def test_reload_starts_the_executors_anew(api: Api, stack: Stack) -> None:
    before = pids(stack, "shout")
    assert stack.manage("reload", "shout").returncode == 0
    wait_until(lambda: before.isdisjoint(pids(stack, "shout")), what="every executor is another process")
    assert api.infer("a", "shout").json["output"] == "A"


def test_watching_goes_on_until_ctrl_c(stack: Stack) -> None:
    process = subprocess.Popen(
        [sys.executable, "manage.py", "queues", "--watch", "0.1", "--json"],
        cwd=ROOT, env=stack._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
    assert {row["tier"] for row in looks[2]} == {"enterprise", "paid", "free"}


def test_a_shell_completes_commands_models_and_workers(stack: Stack) -> None:
    assert "_MANAGE_PY_COMPLETE=bash_complete" in stack.manage("completion", "bash").stdout
    assert completions(stack, "manage.py pau", 1) == ["pause"]
    assert completions(stack, "manage.py pause qu", 2) == ["quartet"]
    assert completions(stack, "manage.py tune echo max_b", 3) == ["max_batch_size="]
    nodes = {each.partition("@")[0] for each in completions(stack, "manage.py drain worker", 2)}
    assert nodes == {"worker1", "worker2"}


def completions(stack: Stack, words: str, at: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "manage.py"],
        cwd=ROOT,
        env=stack._environment | {"_MANAGE_PY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def fleet(stack: Stack) -> Any:
    return json.loads(stack.manage("workers", "--json").stdout)


def pids(stack: Stack, model: str) -> set[int]:
    rows = [each for row in fleet(stack) for each in row["models"] if each["model"] == model]
    return {each["pid"] for each in rows if each["state"] == "ready"}

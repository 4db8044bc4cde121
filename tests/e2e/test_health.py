"""`health` and `logs` against real processes: what works, stands still, or cannot do its work, and what is printed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.client import connected
from tests.e2e.stack import PATIENT, Stack
from tests.waiting import wait_until

MODELS = """\
[models.talker]
source = "talker:Talker"
timeout_ms = 30000

[models.talker.options]
greeting = "hello from a model"
"""
MODULE = """\
class Talker:
    def __init__(self, greeting):
        print(greeting, flush=True)

    def load(self, device):
        pass

    def predict(self, inputs, parameters):
        for each in inputs:
            print(each)
        return inputs
"""
ROLES = ("web", "worker", "ops")


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("talking")
    (folder / "talker.py").write_text(MODULE)
    stack = Stack(folder, MODELS)
    try:
        yield stack.start("--web-workers=1", "--workers=1", "--no-flower", admission="off", **PATIENT)
        stack.stop()
    finally:
        stack.kill()


def said(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    return done.returncode, line


@pytest.fixture
def stopped(talking: Stack) -> Iterator[object]:
    """`stopped(role)` halts its processes until the end of the test."""
    halted: list[int] = []

    def halt(role: str) -> list[int]:
        pids = [each.pid for each in talking.frontends()] if role == "web" else talking.pids(role)
        halted.extend(pids)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    yield halt
    for pid in halted:
        os.kill(pid, signal.SIGCONT)
    for role in ROLES:
        wait_until(lambda role=role: talking.manage("health", role, "--ready").returncode == 0, what=f"{role} is back")


@pytest.mark.parametrize("role", ROLES)
def test_what_runs_works_and_is_ready(talking: Stack, role: str) -> None:
    assert said(talking.manage("health", role)) == (0, f"{role} is alive")
    wait_until(lambda: talking.manage("health", role, "--ready").returncode == 0, what="it is ready")


def test_a_role_works_without_redis_and_is_not_ready(talking: Stack, stopped) -> None:
    stopped("redis")
    for role in ROLES:
        code, why = said(talking.manage("health", role, "--ready"))
        assert code == 1, role
        assert "Redis" in why or "answer" in why
    assert [talking.manage("health", role).returncode for role in ROLES] == [0, 0, 0]


@pytest.mark.parametrize("role", ROLES)
def test_what_stands_still_is_told_with_its_process(talking: Stack, stopped, role: str) -> None:
    (pid,) = stopped(role)
    wait_until(lambda: talking.manage("health", role).returncode == 1, what="its silence is noticed")
    code, why = said(talking.manage("health", role))
    assert (code, f"{role} (pid {pid}) has not beaten" in why) == (1, True), why
    for other in set(ROLES) - {role}:
        assert talking.manage("health", other).returncode == 0


def test_what_was_never_started_is_not_alive(talking: Stack, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = Stack(tmp_path_factory.mktemp("elsewhere"), MODELS)
    code, why = said(elsewhere.manage("health", "worker"))
    assert code == 1
    assert "no worker process is registered" in why


def test_logs_have_what_models_print(talking: Stack) -> None:
    with connected(talking.port) as api:
        assert api.post("/v1/inference", {"model": "talker", "input": "a word of its own"}).status == 200
    wait_until(lambda: "a word of its own" in talking.manage("logs", "worker").stdout, what="the print is in the log")
    assert "hello from a model" in talking.manage("logs", "worker1").stdout
    assert "hello from a model" not in talking.manage("logs", "web").stdout
    everything = talking.manage("logs").stdout
    assert {"valkey", "worker1", "web", "ops"} <= {line.split("|")[0].strip() for line in everything.splitlines()}


def test_logs_can_be_followed(talking: Stack) -> None:
    output = talking.state_dir.parent / "followed.txt"
    with output.open("wb") as file:
        following = talking.spawn("logs", "worker", "-f", "-n", "0", stdout=file)
    try:
        with connected(talking.port) as api:

            def is_told() -> bool:
                api.post("/v1/inference", {"model": "talker", "input": "said while somebody listened"})
                return "said while somebody listened" in output.read_text()

            wait_until(is_told, what="the print is followed")
    finally:
        following.send_signal(signal.SIGINT)
        assert following.wait() == 0

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.processes import Processes, free_port
from tests.processes import alive

# Ignores SIGTERM, and starts a child that leaves for a session of its own: what Ray's daemons do.
_STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture
def processes(tmp_path: Path):
    started = Processes(tmp_path)
    yield started
    started.stop(grace_s=0.1)


def _wait_for(condition, limit_s: float = 30.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_stop_ends_a_child_that_ignores_sigterm_and_the_grandchild_that_left_its_session(processes, tmp_path):
    processes.start("stubborn", [sys.executable, "-c", _STUBBORN], cwd=tmp_path, env=dict(os.environ))
    _wait_for(lambda: "started" in processes.log_path("stubborn").read_text() and len(processes.marked()) == 2)
    pids = [process.pid for process in processes.marked()]

    processes.stop(grace_s=0.1)

    assert processes.marked() == []
    assert [pid for pid in pids if alive(pid)] == []


def test_a_child_that_ends_by_itself_is_reported_with_its_last_words(processes, tmp_path):
    processes.start(
        "short", [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"], cwd=tmp_path, env={}
    )
    _wait_for(processes.dead)

    assert processes.dead() == ["short (exit 3)"]
    assert "no such model" in processes.log_tail()


def test_free_ports_differ_from_each_other():
    assert len({free_port() for _ in range(20)}) > 1

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from config.environ import ROOT
from tests.processes import alive
from tests.waiting import wait_until

WAITS = """
import time
from pathlib import Path

from tests.valkey import PrivateValkey


def test_waits():
    valkey = PrivateValkey()
    valkey.start()
    try:
        pids = Path(__file__).with_name("pids")
        pids.with_suffix(".new").write_text(str(valkey.pid))
        pids.with_suffix(".new").rename(pids)
        time.sleep(600)
    finally:
        valkey.stop()
        Path(__file__).with_name("stopped").touch()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_servers_end_with_a_run_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "test_waits.py"
    file.write_text(WAITS)
    plugins = ("-p", "tests.leftovers", "-p", "no:cacheprovider")
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", f"--rootdir={tmp_path}", "-c", "/dev/null", *plugins, "-n1", file],
            cwd=ROOT, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until((tmp_path / "pids").exists, "the server runs")
        pid = int((tmp_path / "pids").read_text())
        below = [each.pid for each in psutil.Process(run.pid).children(recursive=True)]
        assert pid in below
        run.send_signal(number)
        run.wait()
        wait_until(lambda: not any(map(alive, below)), "all are gone")
        assert number == signal.SIGKILL or (tmp_path / "stopped").exists()
    finally:
        run.kill()
        run.wait()

"""A state folder whose disk is full: nothing ends of it, callers are told, and all goes on when there is room."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.client import Api
from tests.e2e.stack import ROOT, Stack
from tests.shards import inherited_environment
from tests.waiting import PATIENCE_S, wait_until

STARTS_S = 8.0
MODELS = """\
[models.echo]
source = "workers.models.echo:Echo"

[models.moody]
source = "tests.models:Moody"
"""


@contextlib.contextmanager
def small_disk(folder: Path, size: str = "48m") -> Iterator[Path]:
    """A file system of its own, with little room."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"NOT TESTED: no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with small_disk(tmp_path / "var"):
        each = Stack(tmp_path, MODELS)
        try:
            yield each.start("--web-workers=1", auth="off", ledger_retention_days=1, admission="off", flower_port=0)
        finally:
            each.kill()


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    # Unbuffered: to the last byte.
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return ballast


def said(stack: Stack, text: str) -> int:
    return (stack.state_dir.parent / "output.txt").read_text().count(text)


def test_it_is_told_once_refused_meanwhile_and_served_again(stack: Stack) -> None:
    api = Api(stack.port)
    assert api.infer("before", "echo").status == 200
    before = {row.name: row.pid for row in stack.rows()}

    ballast = fill(stack.state_dir)
    wait_until(lambda: api.infer("while it is full", "echo").status == 503, what="Valkey cannot write")
    refused = api.infer("while it is full", "echo")
    assert (refused.status, refused.error) == (503, "BACKEND_UNAVAILABLE")
    wait_until(lambda: said(stack, "cannot be written to") == 1, what="it is told")
    # What dies now is started again all the same.
    for name in ("worker1", "ops", "valkey", "web"):
        pid = before[name]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _infer(stack, "still full") == 503, what="a frontend is back")
    # A role that ends of what it cannot say does so when it starts.
    time.sleep(STARTS_S)
    assert stack.process.poll() is None

    ballast.unlink()
    wait_until(lambda: _infer(stack, "after") == 200, what="it serves again")
    wait_until(stack.all_run, what="all run")
    wait_until(lambda: said(stack, "can be written to again") == 1, what="that is told")
    assert said(stack, "cannot be written to") == 1
    assert {row.name: row.restarts for row in stack.rows()} == dict.fromkeys(before, 1) | {"flower": 0}
    assert {row.name for row in stack.rows() if row.pid == before[row.name]} == {"flower"}
    stack.stop()


@pytest.mark.parametrize("left_bytes", [0, 16 * 1024])
def test_a_start_on_a_full_disk_ends_with_one_line_and_leaves_nothing_running(tmp_path: Path, left_bytes: int) -> None:
    with small_disk(tmp_path / "var", "1m") as state_dir:
        os.truncate(ballast := fill(state_dir), ballast.stat().st_size - left_bytes)
        tmp_path.joinpath("bunch.toml").write_text(MODELS)
        environment = inherited_environment()
        environment |= {"BUNCH_STATE_DIR": str(state_dir), "BUNCH_AUTH": "off", "BUNCH_FLOWER_PORT": "0"}
        up = subprocess.run(
            [sys.executable, "manage.py", "up", "--port=0", f"--config={tmp_path / 'bunch.toml'}"],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert (up.returncode, up.stdout) == (1, "")
        (line,) = up.stderr.splitlines()
        assert line.startswith(f"Error: {state_dir} is full (No space left on device)")
        assert "free some space" in line
        assert [each.pid for each in psutil.process_iter() if str(state_dir) in _started_with(each)] == []


def _started_with(process: psutil.Process) -> str:
    """Arguments and environment; nothing of one that has ended or is somebody else's."""
    with contextlib.suppress(psutil.Error, OSError):
        return f"{process.cmdline()} {process.environ()}"
    return ""


def _infer(stack: Stack, text: str) -> int:
    """The status; 0 while nobody listens."""
    with contextlib.suppress(OSError):
        return Api(stack.port).infer(text, "echo").status
    return 0


def test_a_screen_on_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    """As `up > /full/disk/up.log`."""
    state_dir = tmp_path / "var"
    with Path("/dev/full").open("w") as full:
        up = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.dummy_up", str(state_dir)],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        wait_until((state_dir / "record.txt").exists, what="children start")
        wait_until(lambda: (state_dir / "record.txt").read_text().count("started") == 4, what="all children run")
        up.terminate()
        _, told = up.communicate(timeout=PATIENCE_S)
    finally:
        up.kill()
    assert (up.returncode, told) == (0, "")

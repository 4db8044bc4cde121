"""No process outlives its test run, however that ends.

    pytest, or the controller of pytest-xdist ──▶ whatever tests start; a mark of the run is in its environment
                      └──▶ this file as a program: when pytest has ended, it kills what has the mark and goes on

Fixtures end what they have started, also when a run is interrupted. But pytest-xdist kills a worker that needs more
than ten seconds for it, and nobody is asked when a process is killed, or a scenario that hangs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid
from types import FrameType
from typing import Any

import psutil

MARK = "TEST_RUN_ID"
# So long may processes take that end by themselves after the run.
_GRACE_S = 5.0


def pytest_configure(config: Any) -> None:
    if hasattr(config, "workerinput"):
        # A worker of pytest-xdist; it has the mark.
        return
    run_id = uuid.uuid4().hex
    options = ["-P", __file__, str(os.getpid()), run_id]
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    # Not by `subprocess`: it would be a child that nobody has waited for. Ctrl-C is for the session of pytest alone.
    os.posix_spawn(
        sys.executable,
        [sys.executable, *options],
        environment,
        setsid=True,
        file_actions=[(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_RDWR, 0) for each in (0, 1)],
    )
    os.environ[MARK] = run_id
    _end_in_order_on_sigterm()


def _end_in_order_on_sigterm() -> None:
    """Let SIGTERM end a run like Ctrl-C, so that fixtures are torn down."""
    mine = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == mine:
            raise KeyboardInterrupt
        # A fork of the tests.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)


def marked(name: str, value: str) -> list[psutil.Process]:
    """The living processes that were started with a variable of the environment, wherever they have gone."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if process.environ().get(name) == value:
                found.append(process)
    return found


def _kill_after(parent: int, run_id: str) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    until = time.monotonic() + _GRACE_S
    while (left := marked(MARK, run_id)) and time.monotonic() < until:
        time.sleep(0.2)
    while left:
        for process in left:
            with contextlib.suppress(psutil.Error):
                print(f"left by the tests, now killed: {process.pid} {process.cmdline()}", file=sys.stderr)
                process.kill()
        psutil.wait_procs(left, timeout=2.0)
        # One may have been started between the list and the kill.
        left = marked(MARK, run_id)


if __name__ == "__main__":
    _kill_after(int(sys.argv[1]), sys.argv[2])

"""The child processes of one run of one system, and the end of every one of them.

Some systems start processes that leave their session (Ray's daemons do), so a process group is not enough to
find them all. Each run therefore puts a mark of its own into the environment, which every descendant inherits.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.benchmarks import cores
from tests.leftovers import marked

_MARK = "BENCH_RUN_ID"


def free_port() -> int:
    """A free TCP port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """Starts processes with their output in `folder`, and stops them with all that they started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run_id = uuid.uuid4().hex
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str, command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        """Start `command` in a session of its own, on the cores of the systems; its output goes to
        `<folder>/<name>.log`.
        """
        with self.log_path(name).open("ab") as log, cores.on(cores.of_this_machine().system):
            child = subprocess.Popen(
                list(command),
                cwd=cwd,
                env={**env, _MARK: self._run_id},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append((name, child))

    def dead(self) -> list[str]:
        """The names of the children that have ended without being asked."""
        return [f"{name} (exit {child.returncode})" for name, child in self._children if child.poll() is not None]

    def cpu_s(self) -> float:
        """CPU seconds that the children and all their descendants have used since each of them started.

        Descendants are found by parent, not by the mark: Valkey overwrites its environment with its title.
        """
        spent = 0.0
        for _, child in self._children:
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(child.pid)
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        times = process.cpu_times()
                        spent += times.user + times.system
        return spent

    def log_path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def log_tail(self, lines: int = 30) -> str:
        """The end of every child's log, to find the reason of a failure."""
        parts = []
        for name, _ in self._children:
            text = self.log_path(name).read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"--- {name}", *text]))
        return "\n".join(parts)

    def stop(self, grace_s: float = 10.0) -> None:
        """Send SIGTERM to the children, last started first; after `grace_s` for each, SIGKILL to the rest."""
        for _, child in reversed(self._children):
            # Only the child itself: supervisors end their own children in the order that they need.
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(grace_s)
        self._kill_marked()
        for _, child in self._children:
            child.wait()
        self._children.clear()

    def _kill_marked(self) -> None:
        # At least twice, because a process may have forked between the listing and the kill.
        for attempt in range(20):
            marked = self.marked()
            if not marked:
                return
            for process in marked:
                with contextlib.suppress(psutil.Error):
                    # multiprocessing's trackers end by themselves after their processes, and remove the semaphores of
                    # dead ones from /dev/shm.
                    if attempt or "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):
                        process.send_signal(signal.SIGKILL)
            psutil.wait_procs(marked, timeout=2.0)
            time.sleep(0.05)
        raise RuntimeError(f"processes that would not end: {[process.pid for process in self.marked()]}")

    def marked(self) -> list[psutil.Process]:
        """Every living process of this run, wherever it has gone."""
        return marked(_MARK, self._run_id)

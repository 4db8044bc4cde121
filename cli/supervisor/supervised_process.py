"""A supervised process and its state."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from cli.supervisor.backoff import Backoff
from cli.supervisor.log_files import LogTail, rotate
from cli.supervisor.probes import Probe, alive
from cli.supervisor.reaper.reaper_client import Reaper


class State(str, Enum):
    WAITING = "waiting"  # for what it needs, before its first start
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"  # dead, waiting out its back-off
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """The command of a process, its place in the start and stop order, and its way to end.

    Children of a lower `start_stage` run before those of a higher one are started. Stopping follows `stop_stage`, and
    children of a later stage are kept running (and restarted) until their turn.
    """

    name: str
    role: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    log_file: Path
    start_stage: int
    stop_stage: int
    stop_timeout_s: float
    probe: Probe = alive
    # Called with the pid of a process that has died, for any reason, and repeated until it returns True.
    aftermath: Callable[[int], bool] = lambda pid: True
    # The stack counts as started without it, and its deaths never stop the stack.
    optional: bool = False
    # The signal that ends it when there is no time, instead of SIGKILL; it must obey quickly.
    hasty_signal: int = signal.SIGKILL
    # At least this long after a death; or only the back-off, once `restart_early` returns True.
    restart_after_s: float = 0.0
    restart_early: Callable[[], bool] = lambda: False
    # Of a worker.
    pool: str = ""


class SupervisedProcess:
    """A process that the supervisor starts, watches and stops; every method returns at once."""

    def __init__(self, spec: ProcessSpec, reaper: Reaper, backoff: Backoff) -> None:
        self.spec = spec
        self.state = State.WAITING
        self.restarts = 0
        self.failures = 0
        self.detail = ""
        self.error = ""
        # The last error of this life that was shown; the same one again is not shown.
        self.reported_error = ""
        self.log = LogTail(spec.log_file)
        self._reaper = reaper
        self._backoff = backoff
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._due_at = self._early_at = 0.0
        self._dead_pids: list[int] = []
        rotate(spec.log_file)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_gone(self) -> bool:
        """Return whether it is stopped, and the aftermath of all its earlier lives is done."""
        return self.state is State.STOPPED and not self._dead_pids

    def start(self, now: float) -> None:
        try:
            self._process = self._reaper.spawn(
                self.spec.command, self.spec.environment, self.spec.log_file, self.spec.hasty_signal
            )
        except OSError as error:
            self.failures = self._backoff.failures(self.failures, 0.0)
            self._due_at = self._early_at = now + self._backoff.delay_s(self.failures)
            self.state, self.detail = State.RESTARTING, f"cannot be started: {error.strerror}"
            return
        self._started_at = now
        self.state, self.detail, self.error, self.reported_error = State.STARTING, "", "", ""

    def start_if_due(self, now: float) -> None:
        if self.state is State.RESTARTING and now >= self._due_at:
            self.restarts += 1
            self.start(now)

    def reap(self, now: float) -> int | None:
        """The exit status if the process has just ended; the rest of its process group is killed."""
        process = self._process
        if process is None or os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        # Before the zombie is collected: until then the number of the group cannot be reused.
        self._kill_group(signal.SIGKILL)
        status = process.wait()
        self._reaper.forget(process.pid)
        self._dead_pids.append(process.pid)
        self._clean_up()
        self._process = None
        if self.state is State.STOPPING:
            self.state = State.STOPPED
        else:
            self.failures = self._backoff.failures(self.failures, now - self._started_at)
            self._early_at = now + self._backoff.delay_s(self.failures)
            self._due_at = max(self._early_at, now + self.spec.restart_after_s)
            self.state, self.detail = State.RESTARTING, exit_text(status)
        return status

    def probe(self) -> None:
        """Run the probe while it starts, and repeat the aftermath of earlier lives until it is done."""
        self._clean_up()
        if self.state is State.RESTARTING and self._due_at > self._early_at and self.spec.restart_early():
            self._due_at = self._early_at
        if self.state is State.STARTING and self.pid is not None:
            found = self.spec.probe(self.pid)
            self.detail, self.error = found.detail, found.error
            if found.ready:
                self.state, self.detail = State.RUNNING, ""

    def stop(self) -> None:
        """Ask it to end gracefully."""
        self._end(signal.SIGTERM, whole_group=False)

    def reload(self) -> None:
        """Ask it to read its settings again. Not while it starts: a process without a handler would die of it."""
        if self._process is not None and self.state is State.RUNNING:
            self._process.send_signal(signal.SIGHUP)

    def hasten(self) -> None:
        self._end(self.spec.hasty_signal, whole_group=True)

    def kill(self) -> None:
        self._end(signal.SIGKILL, whole_group=True)

    def _clean_up(self) -> None:
        self._dead_pids = [pid for pid in self._dead_pids if not self.spec.aftermath(pid)]

    def _end(self, signal_number: int, *, whole_group: bool) -> None:
        if self._process is None:
            self.state = State.STOPPED
            return
        self.state, self.detail = State.STOPPING, ""
        if whole_group:
            self._kill_group(signal_number)
        else:
            self._process.send_signal(signal_number)

    def _kill_group(self, signal_number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal_number)


def exit_text(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exited with {status}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"

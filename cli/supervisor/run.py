"""The loop of `up`: ticks the supervisor, handles signals, and updates `up.json`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol, Self

from cli.supervisor import state
from cli.supervisor.disk import Disk
from cli.supervisor.errors import StartFailed
from cli.supervisor.reaper.reaper_client import Reaper
from cli.supervisor.screen import Screen
from cli.supervisor.supervisor import Phase, Report, Supervisor

_TICK_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisable(Protocol):
    """The part of a stack that the loop needs; `cli.supervisor.stack.Stack` is the real one."""

    @property
    def state_dir(self) -> Path: ...

    def supervisor(self, reaper: Reaper, report: Report) -> Supervisor: ...

    def follow(self, supervisor: Supervisor, now: float) -> None:
        """Adjust the number of children to the wanted number."""

    def state(self, supervisor: Supervisor) -> state.UpState: ...


class Work:
    """Work that runs beside the loop once the stack is ready; the stack is stopped when it returns.

    `endless`: it may never return, so a signal that stops the stack before is no failure.
    """

    def __init__(self, function: Callable[[], None], *, endless: bool = False) -> None:
        self._function = function
        self.endless = endless
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="work", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001 - raised again on the main thread
            self.error = error


def run(stack: Supervisable, screen: Screen, started: Callable[[], None], work: Work | None = None) -> None:
    """Start everything, keep it running until a signal (or the end of `work`), and stop everything.

    A second signal kills what is still draining.

    Args:
        started: called once, when the stack first answers.

    Raises:
        StartFailed: the stack did not start, and was stopped again; or its stop was cut short.
    """
    reaper = Reaper()
    # A request that was left for an earlier `up`.
    (stack.state_dir / state.WANTED).unlink(missing_ok=True)
    try:
        with screen, _Signals() as signals:
            supervisor = stack.supervisor(reaper, screen)
            _loop(stack, supervisor, screen, signals, started, work)
    finally:
        reaper.stop()
        for name in (state.FILE, state.WANTED):
            with contextlib.suppress(OSError):
                (stack.state_dir / name).unlink(missing_ok=True)
    if supervisor.failure:
        raise StartFailed(supervisor.failure)
    if work is not None and work.error is not None:
        raise work.error
    if work is not None and not (work.done or work.endless):
        raise StartFailed("stopped before the work was done")
    if signals.count > 1:
        raise StartFailed("killed the processes that had not finished draining")


def _loop(
    stack: Supervisable,
    supervisor: Supervisor,
    screen: Screen,
    signals: _Signals,
    started: Callable[[], None],
    work: Work | None,
) -> None:
    written = None
    was_ready = False
    disk = Disk(stack.state_dir, lambda text: screen.line(text, style="red"))
    while supervisor.phase is not Phase.DONE:
        supervisor.tick(time.monotonic())
        stack.follow(supervisor, time.monotonic())
        now = stack.state(supervisor)
        if now != written and disk.write(partial(state.write, stack.state_dir, now)):
            written = now
        disk.look(time.monotonic())
        screen.show(supervisor.children)
        if supervisor.phase is Phase.READY and not was_ready:
            was_ready = True
            screen.settle()
            started()
            if work is not None:
                work.start()
        if supervisor.phase in {Phase.STARTING, Phase.READY} and (signals.count or (work and work.done)):
            supervisor.stop()
            screen.settle()
            screen.line("stopping" + ("; interrupt again to kill" if signals.count else ""))
        if signals.take_reload():
            supervisor.reload()
            screen.line("the frontends read their settings and certificate again")
        if signals.count > 1:
            supervisor.kill(time.monotonic())
        signals.wait(_TICK_S)


class _Signals:
    """Counts the requests to stop, and wakes the loop for each. HUP asks for a reload, unless it says that the terminal
    is gone.
    """

    def __init__(self) -> None:
        self.count = 0
        self._reload = False
        self._terminals = [number for number in range(3) if os.isatty(number)]
        self._reading, self._writing = -1, -1
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        self._before_fd = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before_fd)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self._reading)
        os.close(self._writing)

    def wait(self, timeout_s: float) -> None:
        select.select([self._reading], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self._reading, 512)

    def take_reload(self) -> bool:
        """Return whether a reload was asked for since the last call."""
        asked, self._reload = self._reload, False
        return asked

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and not self._terminal_is_gone():
            self._reload = True
        else:
            self.count += 1

    def _terminal_is_gone(self) -> bool:
        poll = select.poll()
        for number in self._terminals:
            poll.register(number, 0)
        return any(events & select.POLLHUP for _, events in poll.poll(0))

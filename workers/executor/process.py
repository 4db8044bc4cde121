"""One child process of an executor, from its start to its death. It knows nothing about batches.

The child is a fresh interpreter (`subprocess`, one inherited descriptor) and not a `multiprocessing` process,
not even a spawned one: that would run the parent's main module again in the child, be it `celery worker` or
`manage.py`. And it is not a fork: CUDA does not survive one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from batching.executor import Cause, Lost
from batching.request import Work
from config.environ import ROOT, executor_environment
from config.logging import current_format
from config.model_files.import_path import model_path
from config.process.devices import Placement
from config.process.memory import oom_kills
from config.process.numa import keep_near
from config.settings import ModelSettings
from workers.executor.ipc import BrokenFrames, Frame, FrameReader, FrameWriter, NotReady, Ready, Start, ToParent
from workers.executor.segments import SegmentReader

_ROOT = str(ROOT)
# The arguments after it are for readers of `ps`, too.
_BOOT = "import sys; sys.path.insert(0, sys.argv[2]); from workers.executor.main import main; main(int(sys.argv[3]))"
_BUFFER_BYTES = 1 << 20


# A child that was told to end has only its own clean-up left, for instance of CUDA.
EXIT_GRACE_S = 2.0


class StartFailed(Exception):
    """The child did not become ready; the text is for the model's author. `final`: no other try will succeed."""

    def __init__(self, why: str, final: bool = False) -> None:
        super().__init__(why, final)
        self.why = why
        self.final = final


@dataclass(frozen=True, slots=True)
class Death:
    cause: Cause
    reason: str

    def lost(self, batch_ids: Sequence[str], *, reached: bool, overlap: bool) -> Lost:
        """The fate of the batches that the child held, the front one first. `reached`: that one was being computed;
        `overlap`: so was the one behind it.
        """
        inside = 1 if reached else 0
        begun = 2 if reached and overlap else inside
        front = batch_ids[0] if batch_ids and reached else None
        return Lost(front, tuple(batch_ids[begun:]), self.reason, self.cause, tuple(batch_ids[inside:begun]))


class ChildProcess:
    """A child process; constructing starts it. One thread waits and kills; others may write and read, one each.
    `folder` is that of bunch.toml.

    Raises:
        OSError: no process, no descriptors, or no such device is available.
    """

    def __init__(
        self, model: ModelSettings, name: str, placement: Placement, folder: str = "", max_output_bytes: int = 0
    ) -> None:
        if placement.problem:
            raise OSError(placement.problem)
        self.started_at = time.monotonic()
        self._ready: Ready | None = None
        self._buried = False
        ours, theirs = socket.socketpair()
        with theirs:
            # Gevent's sockets do not block; the child, which has no gevent, must.
            os.set_blocking(theirs.fileno(), True)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            try:
                self._process = subprocess.Popen(
                    # -P: the working directory is never first on the path.
                    [sys.executable, "-P", "-c", _BOOT, f"bunch executor {name}", _ROOT, str(theirs.fileno())],
                    env=executor_environment() | placement.environment,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    # A session of its own: Ctrl-C in a terminal does not reach it, and processes that the model starts
                    # can be killed along with it.
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        keep_near(self._process.pid, placement.visible)
        self._sock = ours
        self._reader = FrameReader(ours, ToParent, SegmentReader())
        self._writer = FrameWriter(ours)
        # The end of the pipe is not enough: a process that the model started may keep it open.
        self._death = _open_pidfd(self._process.pid)
        self.reset_oom_evidence()
        start = Start(
            structs.replace(model, device=placement.device, source=placement.source or model.source),
            name,
            os.getpid(),
            [os.fsencode(each) for each in model_path(folder, sys.path)],
            logging.getLogger().getEffectiveLevel(),
            current_format(),
            max_output_bytes,
        )
        with contextlib.suppress(OSError):
            self._writer.send(self._writer.pack(start))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def loaded(self) -> bool:
        """Return whether it has said that its model is loaded."""
        return self._ready is not None

    def reset_oom_evidence(self) -> None:
        """From now on, only later kills of the kernel explain why this process was killed."""
        self._oom_kills = oom_kills()

    def watch(self, poll: select.poll) -> None:
        """Make `poll` return when there is something to read, or when the child is dead."""
        self.watch_death(poll)
        self.watch_answers(poll)

    def watch_answers(self, poll: select.poll) -> None:
        poll.register(self._sock, select.POLLIN)

    def watch_death(self, poll: select.poll) -> None:
        """Make `poll` return when the child is dead; where the system cannot tell, when all ends of its pipe are."""
        # Without any event a hang-up is told of all the same.
        poll.register(*((self._sock, 0) if self._death is None else (self._death, select.POLLIN)))

    def await_ready(self, timeout_s: float, stop: int | None) -> Ready | None:
        """Block until the model is loaded; None when there is something to read from the descriptor `stop`.

        Raises:
            StartFailed: it cannot be loaded, or not in time.
        """
        poll = select.poll()
        self.watch(poll)
        if stop is not None:
            poll.register(stop, select.POLLIN)
        while self.look(timeout_s) is None:
            left = self.started_at + timeout_s - time.monotonic()
            if any(descriptor == stop for descriptor, _ in poll.poll(milliseconds(left))):
                return None
        return self._ready

    def look(self, timeout_s: float) -> Ready | None:
        """The message that the model is loaded; None if it has not come yet. Does not block.

        Raises:
            StartFailed: it cannot be loaded, or not within `timeout_s` of its start, or has died since.
        """
        # Checked before its messages are read, or a last message could arrive between the two.
        gone = self.gone
        try:
            for message in () if self._ready is not None else self.messages():
                if isinstance(message, Ready):
                    self._ready = message
                    break
                if isinstance(message, NotReady):
                    raise StartFailed(message.error, message.final)
        except BrokenFrames as error:
            raise StartFailed(f"the model wrote into the executor's pipe: {error}") from error
        if gone or self.gone:
            self.wait(EXIT_GRACE_S)
            when = "while it was not used yet" if self._ready is not None else "while the model was loading"
            raise StartFailed(f"{self.bury().reason} {when}")
        if self._ready is None and time.monotonic() >= self.started_at + timeout_s:
            raise StartFailed(
                f"not ready after {timeout_s * 1000:.0f} ms; raise start_timeout_ms if the model needs longer"
            )
        return self._ready

    def pack(self, work: Work) -> Frame:
        """The frame of a batch, to be written."""
        return self._writer.pack(work)

    def write(self, frame: Frame) -> None:
        """Write a frame. Blocks while the child reads nothing and the buffer is full, at the latest until `kill`.

        Raises:
            OSError: not all of the frame was taken, so the child never saw it.
        """
        self._writer.send(frame)

    def messages(self, *, once: bool = False) -> Iterator[ToParent]:
        """The messages that have arrived, without blocking. `once`: those of one read, there may be more.

        Raises:
            BrokenFrames: the child, or something in it, wrote bytes that are not a message.
        """
        return self._reader.available(once=once)

    @property
    def has_ended(self) -> bool:
        """True once its end of the pipe was read."""
        return self._reader.eof

    @property
    def part_bytes(self) -> int:
        """The bytes that have been read of a message that is not whole yet."""
        return self._reader.part_bytes

    @property
    def gone(self) -> bool:
        """Return whether nothing more will come: it is dead, or has closed its pipe."""
        return self._reader.eof or self._is_zombie()

    def close_input(self) -> None:
        """Let it finish its batches, then end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill it and all processes that it started; a blocked writer is released. Its earlier messages can still be
        read.
        """
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        # Until it is waited for, it is at least a zombie, so its number cannot be reused. gevent waits for it as soon
        # as it is dead, a moment before its burial: while anything that it has started lives, the number stays that of
        # their group, and otherwise all other numbers would have to be used up in that moment.
        if not self._buried:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Return whether it dies within that time. It stays a zombie."""
        deadline = time.monotonic() + timeout_s
        while not self._is_zombie():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._death is None:
                time.sleep(min(left, 0.02))
            else:
                select.select([self._death], [], [], left)
        return True

    def ended(self, grace_s: float) -> Death:
        """The death of a child whose pipe has ended: that is a moment before its own end, longer when it cleans up."""
        if self.wait(min(EXIT_GRACE_S, grace_s)):
            return self.bury()
        self.bury()
        return Death(Cause.EXIT, "the process closed its pipe")

    def bury(self) -> Death:
        """Kill the rest of it, and wait; returns how it died."""
        self.kill()
        code = self._process.wait()
        self._buried = True
        if code >= 0:
            return Death(Cause.EXIT, f"the process exited with status {code}")
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            # The killed process is only named in the kernel's log, which we can seldom read.
            text = "the process was killed by SIGKILL, and the kernel's OOM killer was active at that time"
            return Death(Cause.MEMORY, text)
        try:
            return Death(Cause.EXIT, f"the process was killed by {signal.Signals(-code).name}")
        except ValueError:
            return Death(Cause.EXIT, f"the process was killed by signal {-code}")

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._sock.close()
        if self._death is not None:
            os.close(self._death)

    def _is_zombie(self) -> bool:
        if self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # Another thread in this process has waited for it.
            return True


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        # Not Linux, or forbidden in this container.
        return None


def milliseconds(seconds: float) -> int:
    """Milliseconds for `poll`: rounded up, since waking just before the time would spin until then; and within a C
    int.
    """
    return math.ceil(min(max(0.0, seconds), 3600.0) * 1000)

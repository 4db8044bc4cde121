"""One child process of an executor, from its start to its death. Knows nothing about batches.

The child is a fresh interpreter (`subprocess`, one inherited descriptor) and not a `multiprocessing` process,
not even a spawned one: that would run the parent's main module again in the child, be it `celery worker` or
`manage.py`. And it is no fork: CUDA does not survive one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from config.logging import current_format
from config.memory import oom_kills
from config.settings import ModelSettings
from workers.frames import FrameReader, NotReady, Passing, Ran, Ready, Start, encode
from workers.model_path import model_path

_ROOT = str(Path(__file__).resolve().parent.parent)
# The arguments after it are for whoever reads `ps`, too.
_BOOT = "import sys; sys.path.insert(0, sys.argv[2]); from workers.child import main; main(int(sys.argv[3]))"
_BUFFER_BYTES = 1 << 20


class ChildProcess:
    """Constructing starts it. One thread reads, waits and kills; another may write. `folder` is that of bunch.toml.

    Raises:
        OSError: no process, or no descriptors, to be had.
    """

    def __init__(self, model: ModelSettings, name: str, folder: str = "") -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            try:
                self._process = subprocess.Popen(
                    # -P: not even a moment with the working directory in front.
                    [sys.executable, "-P", "-c", _BOOT, f"bunch executor {name}", _ROOT, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    # A session of its own: Ctrl-C in a terminal does not reach it, and whatever the model
                    # starts can be killed along with it.
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        self._sock = ours
        self._reader = FrameReader(ours, Ready | NotReady | Passing | Ran)
        # The end of the pipe is not enough: a process that the model started may hold it open.
        self._death = _open_pidfd(self._process.pid)
        self._oom_kills = oom_kills()
        start = Start(
            model,
            name,
            os.getpid(),
            [os.fsencode(each) for each in model_path(folder, sys.path)],
            logging.getLogger().getEffectiveLevel(),
            current_format(),
        )
        with contextlib.suppress(OSError):
            self._sock.sendall(encode(start))

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, poll: select.poll) -> None:
        """Have `poll` return when there is something to read, or when the child is dead."""
        poll.register(self._sock, select.POLLIN)
        if self._death is not None:
            poll.register(self._death, select.POLLIN)

    def write(self, frame: bytearray) -> None:
        """Blocks while the child reads nothing and the buffer is full, until `hang_up` at the latest.

        Raises:
            OSError: not all of the frame was taken, so the child never saw it.
        """
        self._sock.sendall(frame)

    def messages(self) -> Iterator[Ready | NotReady | Passing | Ran]:
        """What has arrived, without blocking.

        Raises:
            BrokenFrames: the child, or something in it, wrote what is no message.
        """
        return self._reader.available()

    @property
    def gone(self) -> bool:
        """Whether nothing more will come: it is dead, or has closed its pipe."""
        return self._reader.eof or self._is_zombie()

    def close_input(self) -> None:
        """Let it finish what it has, then end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """It and all it started; a blocked writer is released. What it wrote before can still be read."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        # Until it is waited for it is at least a zombie, so the number cannot be another's.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Whether it is dead, within that time. It stays a zombie."""
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

    def bury(self) -> str:
        """Kill what is left of it, and wait; how it died."""
        self.kill()
        code = self._process.wait()
        if code >= 0:
            return f"exited with status {code}"
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            # Not whom: that is in the kernel's log, which is seldom open to us.
            return "was killed by SIGKILL; the kernel has killed for want of memory meanwhile"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    def close(self) -> None:
        self._sock.close()
        if self._death is not None:
            os.close(self._death)

    def _is_zombie(self) -> bool:
        if self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # Somebody else in this process waited for it.
            return True


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        # Not Linux, or forbidden in this container.
        return None

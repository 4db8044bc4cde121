"""The first program of a child process: ties its life to the supervisor's, then becomes the real program.

    python -I -S launch.py FD PARENT_PID STOP_SIGNAL COMMAND…

It runs by path in a bare interpreter, so it imports nothing of Bunch. It announces the process group to the reaper
before the real program runs and while the pipe is open, so a `kill -9` of the supervisor never loses track of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    reaper_fd, parent_pid, stop_signal, *command = arguments
    # Sockets, databases and files of a model are for this user alone.
    os.umask(0o077)
    with contextlib.suppress(BrokenPipeError):  # a reaper that was killed is told by the supervisor
        os.write(int(reaper_fd), f"+{os.getpid()} {stop_signal}\n".encode())
    os.close(int(reaper_fd))
    if sys.platform == "linux":
        # The kernel's own signal, in case the reaper was killed as well. It is sent when the thread that forked us
        # ends, hence the supervisor starts children from its main thread only.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(parent_pid):
            sys.exit("the supervisor ended before this process started")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])

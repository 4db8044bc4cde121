"""What a model forks: a process of its own, which must neither act for the executor nor ignore what it would ignore.

    os.fork() in a model ──▶ copy: signals as they were before us, our socket closed
                                   └ comes back out of the model, by a return or an exception ──▶ ends

`multiprocessing` ends its own copies. A plain `os.fork()` whose copy raises, or calls `sys.exit`, would come back into
our loop, and answer batches beside the executor on the same socket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any

_executor_pid = 0


def keep_apart(sock: socket.socket, before: Mapping[int, Any]) -> None:
    """Call once in the executor's process. `before` has the handlers that signals had, by number."""
    global _executor_pid  # noqa: PLW0603 - the process is what this is about
    _executor_pid = os.getpid()

    forking = threading.local()

    def hold_signals() -> None:
        # One that reaches the copy before it has its own handlers would be swallowed by ours.
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, before)

    def let_signals_come() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    def begin_anew() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):
            sock.close()
        let_signals_come()

    os.register_at_fork(before=hold_signals, after_in_parent=let_signals_come, after_in_child=begin_anew)


def end_if_forked(error: BaseException | None = None) -> None:
    """Return in the executor's process alone, and where there is none. `error` is what ended the model's code."""
    if _executor_pid in {0, os.getpid()}:
        return
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        status = 1
        traceback.print_exception(error)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status & 0xFF)

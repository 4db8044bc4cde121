"""Keeps a process that a model forks apart from the executor: it must not act for the executor, nor ignore its signals.

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
    """Install the rules; call it once in the executor's process. `before` has the previous signal handlers, by
    number.
    """
    global _executor_pid  # noqa: PLW0603 - the process is what this is about
    _executor_pid = os.getpid()

    forking = threading.local()

    def hold_signals() -> None:
        # A signal that arrives before the copy has its own handlers would be ignored by ours.
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
    """Return only in the executor's process, or when none is set up. `error` is the exception that ended the model's
    code.
    """
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

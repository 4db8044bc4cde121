"""Outlives the supervisor and kills the process groups that it leaves behind.

    python -I -S reaper.py LOCAL_FILES  <  lines of "+PGID SIGNAL" (a group has started) and "-PGID" (it is gone)

End of input means that the supervisor is gone. After a clean stop every group has been removed, and there is nothing to
do. After a `kill -9` the remaining groups get SIGKILL, except those that asked for a gentler signal (Valkey, which then
writes its log to disk) and have `GRACE_S` for it. Then `remove_unused` of the file LOCAL_FILES removes what they have
left in shared memory. It runs by path in a bare interpreter and imports nothing of Bunch.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import time

GRACE_S = 5.0
# A killed process is gone in an instant, unless the kernel frees a lot of memory.
_DEATH_S = 2.0


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, int] = {}
    for line in sys.stdin.buffer:
        group, _, gentle = line[1:].partition(b" ")
        if line.startswith(b"+"):
            groups[int(group)] = int(gentle)
        else:
            groups.pop(int(group), None)
    for pgid, last_signal in groups.items():
        _signal(pgid, last_signal)
    _wait(groups, GRACE_S)
    for pgid in groups:
        _signal(pgid, signal.SIGKILL)
    _wait(groups, _DEATH_S)
    with contextlib.suppress(Exception):
        # It imports only what comes with Python.
        runpy.run_path(sys.argv[1])["remove_unused"]()


def _wait(groups: dict[int, int], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while any(_signal(pgid, 0) for pgid in groups) and time.monotonic() < deadline:
        time.sleep(0.05)


def _signal(group: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    main()

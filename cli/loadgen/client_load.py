"""Measures whether a load test was limited by the server or by its own client.

A client without spare time sends requests late and reads answers late; both look like a slow server. The kernel reports
how long this process computed, and how long it was ready but waited for a core. When their sum is near the whole time,
the client is at its limit.
"""

from __future__ import annotations

import contextlib
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

_FULL = 0.9
# Lateness below this is timer resolution, not a queue in the client.
_LATE_S = 0.005
_LATE_SHARE = 0.1


class Client(msgspec.Struct, frozen=True):
    """The load of the client over the run, as shares of the time; `limit` says why the figures cannot be trusted, or
    None.
    """

    cpu: float
    waited: float
    late_p99_ms: float
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    at_s: float
    cpu_s: float
    waited_s: float


class ClientLoad:
    """The client's CPU readings at the start and the end of a run."""

    def __init__(self) -> None:
        self._began = _read()

    def shares(self) -> tuple[float, float]:
        """(computing, ready but waiting for a core), as shares of the time since the start."""
        now = _read()
        passed = max(1e-9, now.at_s - self._began.at_s)
        return (now.cpu_s - self._began.cpu_s) / passed, (now.waited_s - self._began.waited_s) / passed


def judge(cpu: float, waited: float, late_p99_s: float, p50_s: float | None, failed_to_open: int) -> Client:
    """Judge the client, with the first reason to distrust the figures."""
    limit = None
    if failed_to_open:
        limit = f"it had no socket for {failed_to_open:,} requests (see `ulimit -n`)"
    elif cpu + waited >= _FULL:
        limit = f"it was busy all the time ({cpu:.0%} computing, {waited:.0%} waiting for a core)"
    elif late_p99_s > max(_LATE_S, _LATE_SHARE * (p50_s or 0.0)):
        limit = f"it sent one request in a hundred {late_p99_s * 1000:.1f} ms late or more"
    return Client(round(cpu, 3), round(waited, 3), round(late_p99_s * 1000, 2), limit)


def raise_file_limit() -> None:
    """Allow as many connections as the system permits: an open loop needs one per waiting request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _read() -> _Reading:
    waited_s = 0.0
    # "time on the processor, time waiting for it, slices", of the main thread, which runs the event loop.
    with contextlib.suppress(OSError, ValueError, IndexError):
        waited_s = int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return _Reading(time.monotonic(), time.thread_time(), waited_s)

"""Memory: settings of the garbage collector, and limits that keep a model's process from taking all memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
from pathlib import Path

# By default CPython collects after 700 new containers: that is a collection every few requests, and sometimes one that
# scans every object of the process in the middle of a request.
YOUNG_OBJECTS = 50_000
# Out of 1000. On a machine that serves models, a model is what fills the memory; Redis and the workers hold everybody's
# requests.
_OOM_SCORE = 800
# As in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAPPED_BYTES = 32 * 1024 * 1024
_KEPT_BYTES = 128 * 1024 * 1024


def settle_heap() -> None:
    """Freeze the heap: objects that exist now are never scanned again. Call it once all long-lived objects are
    built.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


def keep_freed_memory() -> None:
    """Let the allocator keep what large values have needed, for the next ones, instead of giving it back to the kernel
    each time: to get 5 MB of fresh pages takes longer than to copy them.
    """
    # Another C library, with other rules.
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        # Above this threshold each value would be a mapping of its own; it is the highest that there is.
        if mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES):
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def machine_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or the limit of its container if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        # "max": no limit.
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return total


def offer_to_the_oom_killer() -> None:
    """Make the kernel kill this process first when the machine runs out of memory."""
    # Not Linux, or a container that forbids it.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))


def oom_kills() -> int:
    """The number of processes that this machine's OOM killer has killed since boot, in any container; 0 if unknown.
    Unlike `dmesg`, it is readable by everybody, also in a container.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/vmstat").read_text().split("\noom_kill ")[1].split()[0])
    return 0


def limit_memory(size_bytes: int) -> None:
    """Limit what this process may allocate, in bytes; allocations beyond it fail. 0: no limit.

    RLIMIT_DATA counts private writable memory (`man 2 getrlimit`, since Linux 4.7). RLIMIT_AS would count address space
    as well, of which CUDA reserves far more than there is memory.
    """
    if size_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))

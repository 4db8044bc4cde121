"""Memory: the garbage collector, told what kind of program this is, and a model's process, kept from taking it all."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from pathlib import Path

# CPython's default of 700 new containers is a collection every few requests, and now and then one that walks every
# object of the process in the middle of somebody's answer.
YOUNG_OBJECTS = 50_000
# Out of 1000. What fills a machine that serves models is a model; Redis and the workers hold everybody's requests.
_OOM_SCORE = 800


def settle_heap() -> None:
    """Call once a process has loaded and built all that stays: that is never walked again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


def machine_memory() -> int:
    """Bytes of memory that this process may count on: the machine's, or its container's if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        # "max" where there is none.
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return total


def offer_to_the_oom_killer() -> None:
    """When the machine has no memory left, the kernel shall kill this process rather than another."""
    # Not Linux, or a container that forbids even this.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))


def oom_kills() -> int:
    """How many processes the kernel of this machine has killed for want of memory since it started, in any container; 0
    where it does not say. Unlike `dmesg`, it is open to everybody, in a container as well.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/vmstat").read_text().split("\noom_kill ")[1].split()[0])
    return 0


def limit_memory(size_bytes: int) -> None:
    """What this process may allocate, in bytes; beyond it allocations fail. 0: no limit.

    RLIMIT_DATA counts private writable memory (`man 2 getrlimit`, since Linux 4.7). RLIMIT_AS would count address space
    as well, of which CUDA reserves far more than there is memory.
    """
    if size_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))

"""The CPUs near a GPU, on a machine with several NUMA nodes: copies between them do not cross to another node.

/proc/driver/nvidia/gpus/<bus>/information ─▶ bus of a GPU ─▶ /sys/bus/pci/…/numa_node ─▶ /sys/…/node<n>/cpulist
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_UUID = re.compile(r"^GPU UUID:\s*(\S+)", re.MULTILINE)


def near(visible: str | None, root: Path = Path("/")) -> frozenset[int]:
    """The CPUs of the node of a GPU, named as in CUDA_VISIBLE_DEVICES. Empty where the machine has one node, or it is
    not known which.
    """
    nodes = root / "sys/devices/system/node"
    if not visible or len(list(nodes.glob("node[0-9]*"))) < 2:
        return frozenset()
    buses = list(_gpus(root))
    named = [bus for place, (bus, uuid) in enumerate(buses) if visible == str(place) or (uuid and uuid in visible)]
    if not named:
        return frozenset()
    try:
        node = (root / "sys/bus/pci/devices" / named[0].lower() / "numa_node").read_text().strip()
        # -1: the machine does not say.
        return cpus_of((nodes / f"node{node}" / "cpulist").read_text()) if node.isdigit() else frozenset()
    except (OSError, ValueError):
        return frozenset()


def cpus_of(text: str) -> frozenset[int]:
    """The numbers of a list such as `0-3,8,10-11`. Raises ValueError."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def keep_near(pid: int, visible: str | None) -> None:
    """Keep a new process on the CPUs near its GPU, of those that this process may use."""
    cpus = near(visible)
    if cpus:
        # It may have ended, or this container forbids it.
        with contextlib.suppress(OSError):
            allowed = cpus & os.sched_getaffinity(0)
            if allowed:
                os.sched_setaffinity(pid, allowed)


def _gpus(root: Path) -> Iterator[tuple[str, str]]:
    """The bus address and UUID of each GPU, in the order of the bus."""
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        with contextlib.suppress(OSError):
            uuid = _UUID.search((folder / "information").read_text())
            yield folder.name, uuid[1] if uuid else ""

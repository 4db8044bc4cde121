"""The things that this host lacks for Bunch: limits, kernel settings, and the GPU driver, each with its fix.

    /proc, /sys, limits ──look──▶ Host ──lacks──▶ problems

`lacks` only calculates; `look` reads. What cannot be read (not Linux, or a container that hides it) is None, and
nothing is said of it. Kernel settings are those of the host, also in a container: they are changed there.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from config.errors import Problem
from config.process.memory import machine_memory

MIB = 1024 * 1024
_NVIDIA = "0x10de"
# PCI classes of display and 3D controllers; an NVIDIA sound device is none.
_DISPLAYS = ("0x0300", "0x0302")
# A state folder here is gone at a restart of the host, or has locks and `fsync` that may not hold.
_PASSING = {"tmpfs", "ramfs"}
_SHARED = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}
_SYSCTL = "sysctl -w {key}={value}, and the same line in /etc/sysctl.d/90-bunch.conf"
# Two frontends, a worker with its executors, ops, Flower and Valkey, with their threads.
_PROCESSES = 512
_ROOM = 1024 * MIB
_MEMORY = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Host:
    """The findings. `huge_pages` is the word in brackets of the kernel's list, `file_system` the type of the state
    folder's; `gpus_on_bus` counts NVIDIA's display controllers, whether a driver serves them or not.
    """

    open_files: int | None = None
    processes: int | None = None
    somaxconn: int | None = None
    overcommit: int | None = None
    huge_pages: str | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    file_system: str | None = None
    gpus_on_bus: int = 0
    driver: bool = False
    device_files: bool | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """The settings' demands on a host. `embedded`: Valkey runs here; `durable`: what it holds is to survive."""

    open_files: int
    backlog: int
    embedded: bool
    durable: bool
    local_models: bool


def look(state_dir: Path, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Host:
    """Read what there is of this host."""
    folder = next(each for each in (state_dir.resolve(), *state_dir.resolve().parents) if each.exists())
    kernel = proc / "sys"
    files = list(Path("/dev").glob("nvidia[0-9]*"))
    return Host(
        open_files=_limit(resource.RLIMIT_NOFILE),
        processes=_limit(resource.RLIMIT_NPROC),
        somaxconn=_number(kernel / "net/core/somaxconn"),
        overcommit=_number(kernel / "vm/overcommit_memory"),
        huge_pages=_chosen(_text(sys / "kernel/mm/transparent_hugepage/enabled")),
        memory_bytes=machine_memory(),
        free_bytes=_free(folder),
        file_system=_type_of(folder, _text(proc / "mounts")),
        gpus_on_bus=sum(_is_gpu(each) for each in sorted((sys / "bus/pci/devices").glob("*"))),
        driver=(proc / "driver/nvidia/version").exists(),
        device_files=all(os.access(each, os.R_OK | os.W_OK) for each in files) if files else None,
    )


def lacks(host: Host, needs: Needs) -> Iterator[Problem]:
    """The changes to make on `host`, the most harmful first."""
    yield from _gpus(host, needs)
    if host.open_files is not None and host.open_files < needs.open_files:
        yield Problem(
            "open files (ulimit -Hn)",
            host.open_files,
            f"clients beyond it are refused; LimitNOFILE={needs.open_files * 2} in the unit, `ulimits: nofile` in "
            f"compose, or `* hard nofile {needs.open_files * 2}` in /etc/security/limits.d/bunch.conf",
        )
    if host.somaxconn is not None and host.somaxconn < needs.backlog:
        yield _sysctl("net.core.somaxconn", host.somaxconn, 4096, "a burst of new connections is refused")
    if needs.embedded:
        yield from _valkey(host, needs)
    if host.processes is not None and host.processes < _PROCESSES:
        yield Problem(
            "processes (ulimit -u)", host.processes, f"executors may not start; LimitNPROC={_PROCESSES}, or more"
        )
    if host.memory_bytes is not None and host.memory_bytes < _MEMORY:
        found = f"{host.memory_bytes // MIB} MiB"
        yield Problem("memory", found, "less than 1 GiB for everything; BUNCH_WEB_WORKERS=1 and --no-flower need less")


def _gpus(host: Host, needs: Needs) -> Iterator[Problem]:
    if not (host.gpus_on_bus and needs.local_models):
        return
    if not host.driver:
        fix = "no driver serves them: install NVIDIA's (Debian: apt-get install nvidia-driver; then `nvidia-smi`)"
        yield Problem("NVIDIA GPUs", host.gpus_on_bus, fix)
    elif host.device_files is None:
        fix = "their /dev/nvidia* are missing: nvidia-modprobe, or in a container NVIDIA's toolkit (--gpus all)"
        yield Problem("NVIDIA GPUs", host.gpus_on_bus, fix)
    elif not host.device_files:
        yield Problem("/dev/nvidia*", "no access", "this user may not open them: add it to the group that owns them")


def _valkey(host: Host, needs: Needs) -> Iterator[Problem]:
    if host.overcommit == 0:
        why = "Valkey may not fork to rewrite its log when memory is scarce"
        yield _sysctl("vm.overcommit_memory", host.overcommit, 1, why)
    if host.huge_pages == "always":
        fix = "Valkey pauses and grows while it rewrites its log; at each boot: echo madvise > "
        yield Problem("transparent huge pages", host.huge_pages, fix + "/sys/kernel/mm/transparent_hugepage/enabled")
    if needs.durable and host.file_system in _PASSING:
        yield Problem(
            "BUNCH_STATE_DIR", host.file_system, "what is queued is lost when the host restarts; use a folder on a disk"
        )
    if host.file_system in _SHARED:
        yield Problem(
            "BUNCH_STATE_DIR",
            host.file_system,
            "locks and fsync may not hold on a network file system; use a disk",
        )
    if host.free_bytes is not None and host.free_bytes < _ROOM:
        found = f"{host.free_bytes // MIB} MiB free"
        yield Problem("BUNCH_STATE_DIR", found, "the log of Valkey needs more than 1 GiB at a rewrite; free some space")


def _sysctl(key: str, found: int, value: int, why: str) -> Problem:
    return Problem(key, found, f"{why}; {_SYSCTL.format(key=key, value=value)}")


def _limit(which: int) -> int | None:
    _, hard = resource.getrlimit(which)
    return None if hard == resource.RLIM_INFINITY else hard


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return None


def _number(path: Path) -> int | None:
    with contextlib.suppress(ValueError):
        return int(_text(path) or "")
    return None


def _chosen(words: str | None) -> str | None:
    """`madvise` of `always [madvise] never`."""
    return words.partition("[")[2].partition("]")[0] or None if words else None


def _free(folder: Path) -> int | None:
    with contextlib.suppress(OSError):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    return None


def _type_of(folder: Path, mounts: str | None) -> str | None:
    """The type of the file system of `folder`: that of the longest mount point above it, and of the last one there."""
    best, kind = -1, None
    for line in (mounts or "").splitlines():
        _, point, found, *_ = (*line.split(" "), "", "")
        point = point.replace("\\040", " ")
        if folder.is_relative_to(point or "/nowhere") and len(point) >= best:
            best, kind = len(point), found
    return kind


def _is_gpu(device: Path) -> bool:
    vendor, kind = _text(device / "vendor"), _text(device / "class")
    return bool(vendor and kind and vendor.strip() == _NVIDIA and kind.startswith(_DISPLAYS))

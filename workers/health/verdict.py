"""The judgement of a worker's GPUs, from one reading of each. Pure.

    XID of the hardware, or the GPU is gone ──▶ offline: the worker gives everything back, and ends
    XID of an application ────────────────────▶ its executors are replaced
    throttled, or memory is damaged ──────────▶ degraded: it goes on
    memory nearly full ───────────────────────▶ degraded, and smaller batches are claimed

XIDs are NVIDIA's numbers for errors of a GPU ("XID Errors" in its deployment guides).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

# Double-bit memory error; page retirement or row remapping has failed; NVLink; the GPU fell off the bus; uncontained
# memory error.
OF_THE_HARDWARE = frozenset({48, 64, 74, 79, 95})
# A page is to be retired or a row remapped, at the next reset; contained memory error, which only its process feels.
OF_DAMAGED_MEMORY = frozenset({63, 94})
# Exception of a kernel, illegal access, reset of a channel. Not 45, preemptive clean-up: the end of any process that is
# killed may report it, also of one that we kill, and then each replacement would cause the next.
OF_AN_APPLICATION = frozenset({13, 31, 43})
# Memory that has been above the limit must fall by this share below it, or the batch size would swing.
_MARGIN = 0.05


class Health(str, Enum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU at one time; None for what it does not tell.

    Args:
        device: its UUID.
        names: what the devices of executors call it.
        utilization: the share of the last moment in which a kernel ran.
        throttled: why its clock is reduced to protect it; empty otherwise.
        uncorrected: uncorrectable memory errors since the driver was loaded.
        xids: its errors since the last reading.
        lost: the driver cannot reach it any more.
    """

    device: str
    names: frozenset[str]
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature_c: int | None = None
    throttled: str = ""
    uncorrected: int | None = None
    xids: tuple[int, ...] = ()
    lost: bool = False

    @property
    def memory_share(self) -> float:
        """The share of its memory that is in use; 0 where that is not known."""
        return self.memory_used / self.memory_total if self.memory_used is not None and self.memory_total else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of all GPUs of a worker.

    Args:
        reasons: a sentence for each finding, the worst first.
        full: UUIDs of GPUs whose memory is nearly full.
        replace: by UUID, why the executors on a GPU must be replaced.
        uncorrected: the memory errors of each GPU when it was first read.
        damaged: the XIDs of damaged memory that each GPU has reported.
    """

    health: Health = Health.HEALTHY
    reasons: tuple[str, ...] = ()
    full: frozenset[str] = frozenset()
    replace: Mapping[str, str] = field(default_factory=dict)
    uncorrected: Mapping[str, int] = field(default_factory=dict)
    damaged: Mapping[str, frozenset[int]] = field(default_factory=dict)


def judge(readings: Sequence[Reading], before: Verdict, memory_limit: float) -> Verdict:
    """The judgement. `memory_limit` is the share of a GPU's memory above which batches become smaller; 1: never."""
    ends, warns, replace = [], [], {}
    full = set()
    first, damaged = dict(before.uncorrected), dict(before.damaged)
    for each in readings:
        hardware = [xid for xid in each.xids if xid in OF_THE_HARDWARE]
        application = [xid for xid in each.xids if xid in OF_AN_APPLICATION]
        if hardware or each.lost:
            ends.append(f"GPU {each.device} has failed: {_named(hardware) or 'the driver cannot reach it'}")
        if application:
            replace[each.device] = f"GPU {each.device} reported {_named(application)}"
        if found := damaged.get(each.device, frozenset()) | OF_DAMAGED_MEMORY.intersection(each.xids):
            damaged[each.device] = found
            warns.append(f"GPU {each.device} has damaged memory, and needs a reset: {_named(sorted(found))}")
        if each.throttled:
            warns.append(f"GPU {each.device} runs slower: {each.throttled}")
        if each.uncorrected is not None and each.uncorrected > first.setdefault(each.device, each.uncorrected):
            grown = each.uncorrected - first[each.device]
            warns.append(f"GPU {each.device} has had {grown} uncorrectable memory errors")
        limit = memory_limit - (_MARGIN if each.device in before.full else 0.0)
        if memory_limit < 1 and each.memory_share > limit:
            full.add(each.device)
            warns.append(f"the memory of GPU {each.device} is {each.memory_share:.0%} full: batches are smaller")
    health = Health.OFFLINE if ends else Health.DEGRADED if warns else Health.HEALTHY
    return Verdict(health, (*ends, *warns), frozenset(full), replace, first, damaged)


def _named(xids: Sequence[int]) -> str:
    return ", ".join(f"XID {xid}" for xid in dict.fromkeys(xids))

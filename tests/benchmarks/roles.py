"""Processor time of Bunch's processes, by role."""

from __future__ import annotations

import psutil

from tests.benchmarks.bunch_system import Bunch

# `web` with all its workers; `worker` without its executors.
ROLES = ("web", "redis", "worker", "executor", "ops")


def cpu_s(bunch: Bunch) -> dict[str, float]:
    """Seconds of user and system time since each process started."""
    spent = dict.fromkeys(ROLES, 0.0)
    for row in bunch.status()["processes"]:
        main = psutil.Process(row["pid"])
        role = row["role"]
        spent[role] += _seconds(main)
        for child in main.children(recursive=True):
            spent["executor" if role == "worker" else role] += _seconds(child)
    return spent


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)

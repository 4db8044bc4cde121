"""Programs that some tests need and pip does not install: found, installed from Debian where possible, or skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest


@cache
def _found(program: str, package: str) -> str | None:
    if shutil.which(program) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", package]
        subprocess.run(
            command, env=environment, check=False, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    return shutil.which(program)


def tool(program: str, package: str) -> str:
    """The path of `program`; the test is skipped where it is not available."""
    found = _found(program, package)
    if found is None:
        pytest.skip(f"NOT TESTED: {program} is missing; apt-get install {package}")
    return found


def promtool() -> str:
    return tool("promtool", "prometheus")


def chromium() -> str:
    return tool("chromium", "chromium")

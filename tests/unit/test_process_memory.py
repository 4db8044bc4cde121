"""The memory that a process keeps of what it has freed."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_SIZE, _COUNT = 5_000_000, 12
_PROGRAM = f"""
import os
from config.process.memory import keep_freed_memory

def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if KEEPS:
    keep_freed_memory()
before = resident()
# Twice, as glibc adapts itself to what was freed first.
for _ in range(2):
    values = [bytes({_SIZE}) for _ in range({_COUNT})]
    values = [each + b"x" for each in values]
    del values
print(resident() - before)
"""


def kept_bytes(*, keeps: bool) -> int:
    program = _PROGRAM.replace("KEEPS", str(keeps))
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="SKIPPED: this C library has no mallopt")
def test_what_large_values_have_needed_is_kept_for_the_next_ones() -> None:
    assert kept_bytes(keeps=False) < 2 * _SIZE
    assert kept_bytes(keeps=True) > _COUNT * _SIZE

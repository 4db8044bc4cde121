"""The counted copies of processes."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys

import pytest

from tests.benchmarks.copies import counting

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux" or shutil.which("cc") is None,
    reason="SKIPPED: the library that counts is of x86-64 Linux, and needs a compiler",
)
SIZE = 8_000_000
# Each line copies the value once: in memory, in memory, to the kernel, from the kernel.
PROGRAM = f"""
import os, tempfile
value = bytes({SIZE})
other = bytearray(value)
third = bytes(other)
with tempfile.TemporaryFile(buffering=0) as file:
    os.write(file.fileno(), value)
    os.pread(file.fileno(), {SIZE}, 0)
"""


def test_each_copy_is_counted_once() -> None:
    with counting() as copies:
        # What the interpreter reads to start.
        subprocess.run([sys.executable, "-c", "import os, tempfile"], check=True)
        before = copies.bytes
        subprocess.run([sys.executable, "-c", PROGRAM], check=True)
        counted = [now - 2 * each for now, each in zip(copies.bytes, before, strict=True)]
    assert [round(each / SIZE, 1) for each in counted] == [2.0, 2.0]

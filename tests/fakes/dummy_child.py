"""A child for the supervisor: it records events, and has a child of its own.

python dummy_child.py NAME RECORD [--stop-when FILE] [--deaf] [--die] [--say TEXT]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("record", type=Path)
    parser.add_argument("--stop-when", type=Path)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--say", default="")
    given = parser.parse_args()

    def write(what: str) -> None:
        with given.record.open("a", encoding="utf-8") as file:
            file.write(f"{given.name} {what} {os.getpid()}\n")

    def stop(*_: object) -> None:
        write("asked")
        if not given.deaf:
            while given.stop_when and not given.stop_when.exists():
                time.sleep(0.02)
            write("ended")
            sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, lambda *_: write("reloaded"))
    if given.say:
        print(given.say, flush=True)
    if given.die:
        raise RuntimeError("this child cannot live")
    # Ignores TERM, so that only a signal to the whole group ends it.
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen([sys.executable, "-S", "-c", ignore])
    write("started")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()

"""Standard output that takes everything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.environ import ROOT
from config.process.streams import unfailing

SPEAKS = """\
import sys
sys.path.insert(0, {root!r})
from config.process.streams import keep_talking
keep_talking()
for stream in (sys.stdout, sys.__stdout__, sys.stderr):
    print("x" * 100_000, file=stream, flush=True)
assert (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
sys.exit(7)
"""


def test_what_a_full_disk_does_not_take_is_lost_and_no_error() -> None:
    with Path("/dev/full").open("w") as full:
        stream = unfailing(full)
        for _ in range(3):
            print("x" * 100_000, file=stream, flush=True)


def test_what_is_taken_is_there_line_by_line(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="utf-8") as file:
        stream = unfailing(file)
        stream.write("one\n\ud800\n\xe9 half")
        assert (tmp_path / "log").read_text("utf-8").startswith("one\n\\ud800\n")
        stream.flush()
    assert (tmp_path / "log").read_text("utf-8").endswith("\xe9 half")


def test_a_closed_pipe_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        print("to nobody", file=unfailing(pipe), flush=True)


@pytest.mark.parametrize("target", ["/dev/full", os.devnull])
def test_a_program_ends_as_it_wants_to_wherever_its_output_goes(target: str) -> None:
    with Path(target).open("w") as output:
        done = subprocess.run(
            [sys.executable, "-c", SPEAKS.format(root=str(ROOT))], stdout=output, stderr=output, check=False, timeout=60
        )
    assert done.returncode == 7

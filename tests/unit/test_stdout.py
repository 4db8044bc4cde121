"""The lines that a model prints, as its process hands them on."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.environ import ROOT
from workers.executor.stdout import LONGEST_LINE, PrintedLines


class Lines(logging.Logger):
    def __init__(self) -> None:
        super().__init__("lines", logging.INFO)
        self.lines: list[str] = []

    def handle(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def printed(*parts: bytes) -> list[str]:
    lines = Lines()
    raw = PrintedLines(lines, 1)
    for part in parts:
        assert raw.write(part) == len(part)
    raw.close()
    return lines.lines


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        ((b"one\ntw", b"o\n\nthree"), ["one", "two", "three"]),
        ((b" 10%\r 20%\r", b"done\r\n"), [" 10%", " 20%", "done"]),
        ((b"a\r", b"\nb\n"), ["a", "b"]),
        (("é".encode()[:1], "é".encode()[1:] + b"\n"), ["é"]),
        ((b"\xff\n",), ["\ufffd"]),
    ],
)
def test_a_line_ends_with_any_line_end(parts: tuple[bytes, ...], lines: list[str]) -> None:
    assert printed(*parts) == lines


@given(st.lists(st.binary(max_size=50)))
def test_however_it_is_cut_the_lines_are_the_same(parts: list[bytes]) -> None:
    whole = b"".join(parts).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    wanted = [each.decode(errors="replace") for each in whole.split(b"\n")]
    assert printed(*parts) == [each for each in wanted if each.strip()]


def test_a_line_that_never_ends_comes_in_parts_and_is_not_kept() -> None:
    lines = Lines()
    raw = PrintedLines(lines, 1)
    for _ in range(50):
        raw.write(b"." * 1000)
    assert [len(each) for each in lines.lines] == [LONGEST_LINE] * 3


def test_prints_without_an_end_cost_the_same_each() -> None:
    def cost_s(count: int) -> float:
        raw = PrintedLines(Lines(), 1)
        began = time.process_time()
        for _ in range(count):
            raw.write(b"a dot, and another one")
        return time.process_time() - began

    cost_s(1000)
    few, many = min(cost_s(2_000) for _ in range(5)), min(cost_s(40_000) for _ in range(3))
    assert many < 20 * few * 5, "by the square it would be 400 times as much"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_it_is_a_real_stream(log_format: str) -> None:
    code = f"""
import logging.config, subprocess, sys
from config.logging import log_to_stderr
from workers.executor.stdout import make_stdout_tell
logging.config.dictConfig(log_to_stderr("INFO", {log_format!r}))
make_stdout_tell({log_format!r})
assert sys.stdout.fileno() == 1 and sys.stdout.encoding == "utf-8" and not sys.stdout.isatty()
sys.stdout.reconfigure(line_buffering=True)
sys.stdout.buffer.write(b"bytes\\n")
sys.stdout.buffer.flush()
print("half \\ud83d of it")
print("no end", end="", flush=True)
subprocess.run(["echo", "a program's"], stdout=sys.stdout, check=True)
"""
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if log_format == "json":
        said = [json.loads(line)["message"] for line in io.StringIO(done.stderr)]
        assert said == ["bytes", "half \\ud83d of it", "no end"]
        assert done.stdout == "a program's\n"
    else:
        assert done.stdout == "bytes\nhalf \\ud83d of it\nno enda program's\n"

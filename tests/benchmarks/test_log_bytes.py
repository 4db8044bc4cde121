"""Counting what a log on disk has."""

from __future__ import annotations

from tests.benchmarks.log_bytes import commands

LOG = (
    b"#TS:1795977338\r\n*1\r\n$5\r\nMULTI\r\n"
    b"*3\r\n$5\r\nLPUSH\r\n$15\r\nbunch.noop.paid\r\n$4\r\na\r\nb\r\n"
    b"*2\r\n$3\r\nDEL\r\n$24\r\nbunch:lease:w-1795977338\r\n"
)


def test_each_command_has_its_kind_and_its_bytes() -> None:
    found = list(commands(LOG))
    assert [kind for kind, _ in found] == ["MULTI", "LPUSH bunch.noop.paid", "DEL bunch:lease:w*"]
    assert sum(size for _, size in found) == len(LOG) - len(b"#TS:1795977338\r\n")

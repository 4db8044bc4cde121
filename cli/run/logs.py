"""`logs`: prints the output of the processes of `up`, from their files in the state folder."""

from __future__ import annotations

import contextlib
import heapq
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import click

from cli.base import settings_for
from cli.main import printable
from config.installation import PROGRAM

_LOOK_EVERY_S = 0.25
_CHUNK = 1 << 20
_OURS = re.compile(r'(?:\{"time":")?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{3})')
_VALKEY = re.compile(r"\d+:[A-Z] (\d\d \w{3} \d{4} \d\d:\d\d:\d\d\.\d{3})")


@click.command()
@click.argument("role", required=False)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), help="Print only this many of the newest lines of each process."
)
def logs(role: str | None, follow: bool, lines: int | None) -> None:
    """Print the logs of `up`, with the output of the models.

    ROLE is redis, web, worker, ops, flower, or the name of one process as `status` shows it. Without ROLE, the logs of
    all processes are merged by time. The newest 64 MiB of each process are kept; older lines are in <name>.log.1 in the
    state folder. Logs can be read after `up` has ended.
    """
    folder = Path(settings_for(None).state_dir) / "log"
    found = {path.stem: path for path in sorted(folder.glob("*.log"))}
    if not found:
        raise click.ClickException(f"no logs in {folder}; `{PROGRAM} up` writes them")
    chosen = {name: path for name, path in found.items() if role in {None, name, role_of(name)}}
    if not chosen:
        raise click.UsageError(f"no process has the name {role}; the processes are {', '.join(found)}")
    files = {name: LogFile(path) for name, path in chosen.items()}
    with contextlib.suppress(KeyboardInterrupt):
        _show(in_order({name: _newest(each.lines(), lines) for name, each in files.items()}), named=len(files) > 1)
        while follow:
            time.sleep(_LOOK_EVERY_S)
            _show(in_order({name: each.lines() for name, each in files.items()}), named=len(files) > 1)


def role_of(name: str) -> str:
    return "redis" if name == "valkey" else name.rstrip("0123456789")


class LogFile:
    """The file of one process, read on from the last position; `up` truncates it when it is long, and renames it at a
    start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path.with_name(path.name + ".1")
        self._inode = 0
        self._offset = 0
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """New complete lines."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return
        if self._inode and (status.st_ino != self._inode or status.st_size < self._offset):
            with contextlib.suppress(FileNotFoundError):
                yield from self._read(self._aside)
            self._offset = 0
        self._inode = status.st_ino
        yield from self._read(self._path)

    def _read(self, path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            file.seek(self._offset)
            while data := file.read(_CHUNK):
                self._offset += len(data)
                *whole, self._rest = (self._rest + data).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in whole)


def in_order(lines: dict[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Name and line, ordered by the time at which records begin; lines without a time follow the line before them."""
    stamped = (_stamped(name, each) for name, each in lines.items())
    return ((name, line) for _, name, line in heapq.merge(*stamped, key=lambda each: each[0]))


def _stamped(name: str, lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    last = ""
    for line in lines:
        last = max(last, _time_of(line))
        yield last, name, line


def _time_of(line: str) -> str:
    found = _OURS.match(line)
    if found is not None:
        return f"{found[1]} {found[2]}.{found[3]}"
    found = _VALKEY.match(line)
    if found is None:
        return ""
    with contextlib.suppress(ValueError):
        return datetime.strptime(found[1], "%d %b %Y %H:%M:%S.%f").isoformat(" ", "milliseconds")  # noqa: DTZ007
    return ""


def _newest(lines: Iterable[str], count: int | None) -> Iterable[str]:
    return lines if count is None else deque(lines, maxlen=count)


def _show(lines: Iterator[tuple[str, str]], *, named: bool) -> None:
    for name, line in lines:
        click.echo((f"{name:8} | " if named else "") + printable(line))

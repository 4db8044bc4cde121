"""The Lua scripts: one file each in `lua/`, one atomic job each, the stamp's layout and the shard's names in front
of all.

Code that two scripts share, or a rule with a Python twin, is a part: a file of local names that is put in front of a
script. The server creates functions again each time that a script runs, so a script gets only those names of its parts
that it uses; the others are blank lines in its text.

A script reads its arguments by name: `KEYS.lease`, `ARGV.size`, `ARGV[at + ClassRow.rank]`. The names are the fields of
the named tuples that the caller sends. It returns codes by name, too: `Status.RATE`. Names are replaced by numbers and
codes here, once: a name costs nothing at run time, and an undeclared name is an error before the script is ever sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"
_NAME = re.compile(r"\b([A-Z]\w*)\.([A-Za-z]\w*)")
_NO_CODE = re.compile(r"""'[^'\n]*'|"[^"\n]*"|--.*""")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_DEFINITION = re.compile(r"^local (?:function )?([\w, ]+)", re.MULTILINE)
_WIDTH = "width"


class UnknownNameError(NameError):
    """A script uses a name that its caller does not declare."""


def folder_of(module_file: str) -> Path:
    """The `lua/` folder beside a module."""
    return Path(module_file).parent / "lua"


@dataclass(frozen=True)
class LuaScript:
    """A script as its callers declare it, `lua/<name>.lua` in `folder`.

    Args:
        parts: files of functions in front of it, of its folder or of the core's.
        keys: named tuples whose fields stand at the beginning of KEYS, in this order; `KEYS.width` is their number.
        args: likewise of ARGV.
        rows: named tuples that repeat. `Row.field` is the place of a field in a row, from 1; `Row.width` their number.
        codes: enums whose members have a `code`, a string: that is what `Enum.MEMBER` is.
    """

    name: str
    folder: Path = _FOLDER
    parts: tuple[str, ...] = ()
    keys: tuple[type, ...] = ()
    args: tuple[type, ...] = ()
    rows: tuple[type, ...] = ()
    codes: tuple[type[Enum], ...] = ()

    @cached_property
    def text(self) -> str:
        """The text that is sent to the server. Raises UnknownNameError."""
        values: dict[str, Mapping[str, object]] = {row.__name__: _numbers(row) for row in self.rows}
        values |= {"KEYS": _numbers(*self.keys), "ARGV": _numbers(*self.args)}
        values |= {codes.__name__: {each.name: f"'{each.code}'" for each in codes} for codes in self.codes}  # type: ignore[attr-defined]

        def value_of(found: re.Match[str]) -> str:
            table, field = found.groups()
            try:
                value = values[table][field]
            except KeyError:
                raise UnknownNameError(f"{self.name}.lua: {found[0]} is not declared") from None
            return f"{table}[{value}]" if table in {"KEYS", "ARGV"} and field != _WIDTH else str(value)

        *parts, text = (path.read_text(encoding="utf-8") for path in self.files)
        for part in reversed(parts):
            text = used_of(part, text) + text
        return _NAME.sub(value_of, text)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the script: the layout of the fast header, the names of the shard, the parts, and the script."""
        places = (
            folder / f"{each}.lua"
            for each in (*self.parts, self.name)
            for folder in (self.folder if (self.folder / f"{each}.lua").exists() else _FOLDER,)
        )
        return (_FOLDER / "fast_header.lua", _FOLDER / "shard.lua", *places)


def used_of(part: str, text: str) -> str:
    """`part` with those of its local names alone that `text` or another of them uses; blank lines for the others."""
    starts = [found.start() for found in _DEFINITION.finditer(part)]
    kept, wanted = "", _words(text)
    for start, end in reversed(list(zip(starts, [*starts[1:], len(part)], strict=True))):
        block = part[start:end]
        used = not wanted.isdisjoint(defined_in(block))
        kept = (block if used else "\n" * block.count("\n")) + kept
        wanted |= _words(block) if used else set()
    return part[: starts[0]] + kept


def defined_in(part: str) -> list[str]:
    """The local names of a part."""
    return [name for found in _DEFINITION.finditer(part) for name in found[1].strip().split(", ")]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(_NO_CODE.sub("''", text)))


def _numbers(*rows: type) -> dict[str, int]:
    names = [field for row in rows for field in row._fields]  # type: ignore[attr-defined]
    return {field: number for number, field in enumerate(names, 1)} | {_WIDTH: len(names)}

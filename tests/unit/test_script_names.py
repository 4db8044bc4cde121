"""Scripts read what they are given by names that Python declares once."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import pytest

import batching.script_args
import tasks.script_args
from batching.scripts import LuaScript, UnknownNameError, defined_in, used_of

SCRIPTS = (*batching.script_args.ALL, *tasks.script_args.ALL)


class Keys(NamedTuple):
    lease: str
    bell: str


class Row(NamedTuple):
    position: int
    pause_ms: int


class Verdict(Enum):
    GOOD = "g"

    @property
    def code(self) -> str:
        return self.value


@pytest.fixture
def script(tmp_path: Path) -> LuaScript:
    (tmp_path / "some.lua").touch()
    return LuaScript("some", tmp_path, keys=(Keys,), rows=(Row,), codes=(Verdict,))


def test_names_become_numbers_before_the_script_is_sent(script: LuaScript) -> None:
    script.files[-1].write_text("return {KEYS.bell, KEYS[KEYS.width + 1], ARGV[at + Row.pause_ms], Row.width, #ARGV}")
    assert script.text.endswith("return {KEYS[2], KEYS[2 + 1], ARGV[at + 2], 2, #ARGV}")


def test_what_a_script_says_is_named_too(script: LuaScript) -> None:
    script.files[-1].write_text("return Verdict.GOOD")
    assert script.text.endswith("return 'g'")


@pytest.mark.parametrize("text", ["KEYS.bel", "ARGV.lease", "Other.position", "Verdict.BAD"])
def test_a_name_that_nobody_declares_is_an_error_before_the_script_is_sent(script: LuaScript, text: str) -> None:
    script.files[-1].write_text(f"return {text}")
    with pytest.raises(UnknownNameError, match=text):
        _ = script.text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: "-".join((script.name, *script.parts)))
def test_every_script_reads_its_keys_and_arguments_by_name(script: LuaScript) -> None:
    # Every script's first key has the tag of its shard, whatever else it is.
    text = "".join(path.read_text() for path in script.files if path.name != "shard.lua")
    assert not re.search(r"\b(KEYS|ARGV)\[\d", text)
    assert script.text


def test_a_script_gets_those_names_of_its_parts_that_it_uses() -> None:
    part = "local A = 1\n\nlocal function f()\n  return A\nend\n-- g\nlocal function g()\n  return f()\nend\n"
    assert used_of(part, "return f()") == "local A = 1\n\nlocal function f()\n  return A\nend\n-- g\n\n\n\n"
    assert not used_of(part, "-- f\nreturn 'g', other.f").strip()


def test_every_name_of_a_part_is_used_by_a_script() -> None:
    parts = {path for script in SCRIPTS for path in script.files[:-1]}
    for path in parts:
        used = {name for script in SCRIPTS if path in script.files for name in defined_in(script.text)}
        assert set(defined_in(path.read_text())) <= used, path


def test_every_file_belongs_to_a_declared_script() -> None:
    folders = {script.folder for script in SCRIPTS}
    there = {path for folder in folders for path in folder.glob("*.lua")}
    assert there == {path for script in SCRIPTS for path in script.files}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: "-".join((script.name, *script.parts)))
def test_every_name_that_is_declared_is_read(script: LuaScript) -> None:
    text = "".join(path.read_text() for path in script.files)
    read = set(re.findall(r"\b([A-Z]\w*)\.([A-Za-z]\w*)", text))
    tables = {
        "KEYS": [field for row in script.keys for field in row._fields],
        "ARGV": [field for row in script.args for field in row._fields],
        **{row.__name__: row._fields for row in script.rows},
        **{codes.__name__: [each.name for each in codes] for codes in script.codes},
    }
    declared = {(table, field) for table, fields in tables.items() for field in fields}
    assert declared - read == set()

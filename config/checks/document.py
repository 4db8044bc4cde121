"""Reads `bunch.toml`, and reports errors of its text before any names are checked."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from config.errors import Problem

_WHERE = re.compile(r"(?P<what>.*?)(?: \(at line (?P<line>\d+), column \d+\)| \(at end of document\))", re.DOTALL)
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'-]+\s*=)")
_TABLE = re.compile(r"\s*(\[+[A-Za-z0-9_.\"'-]+\]+)\s*(#|$)")
_TWICE = "is defined twice; keep one of the two"


def read_document(path: Path, problems: list[Problem]) -> dict[str, Any]:
    """The tables of the file; empty, with a problem, when it is not valid TOML."""
    try:
        # Some editors begin a file with a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        problems.append(Problem(str(path), "…", "is not UTF-8 text; save it as UTF-8"))
        return {}
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(_broken(path, text, str(error)))
        return {}
    _lift_default(path, document, problems)
    return document


def _broken(path: Path, text: str, error: str) -> Problem:
    """A problem that names the broken line by its key alone, since the value may be a credential."""
    found = _WHERE.fullmatch(error)
    if found is None or not found["line"]:
        return Problem(str(path), "…", f"is not valid TOML: {error}")
    number, what = int(found["line"]), found["what"]
    line = text.split("\n")[number - 1] if number <= text.count("\n") + 1 else ""
    key = _KEY.match(line) or _TABLE.match(line)
    shown = f"{key[1].strip()} …" if key else "…"
    if what == "Cannot overwrite a value" or what.startswith("Cannot declare"):
        return Problem(str(path), shown, f"line {number} {_TWICE}")
    return Problem(str(path), shown, f"line {number} is not valid TOML: {what[0].lower()}{what[1:]}")


def _lift_default(path: Path, document: dict[str, Any], problems: list[Problem]) -> None:
    """Move a `default_model` from below a [table] to the top level, unless there is one. TOML assigns it to the table
    above it, where it has no meaning.
    """
    models = document.get("models")
    tables = {f"[models.{name}]": table for name, table in models.items()} if isinstance(models, dict) else {}
    tables["[server]"] = document.get("server")
    for where, table in tables.items():
        if not isinstance(table, dict) or "default_model" not in table:
            continue
        value = table.pop("default_model")
        if document.setdefault("default_model", value) != value:
            problems.append(
                Problem(
                    f"{where} default_model",
                    value,
                    f"{path.name} also sets {document['default_model']!r}; keep one, above the first [table]",
                )
            )

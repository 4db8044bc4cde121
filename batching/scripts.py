"""The Lua scripts: one file each in `lua/`, one atomic job each, the stamp's layout in front of all."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"


def folder_of(module_file: str) -> Path:
    """The `lua/` folder beside a module."""
    return Path(module_file).parent / "lua"


@cache
def source(name: str, folder: Path = _FOLDER) -> str:
    """The text of `lua/<name>.lua`, behind `lua/stamp.lua`."""
    return (_FOLDER / "stamp.lua").read_text(encoding="utf-8") + (folder / f"{name}.lua").read_text(encoding="utf-8")

"""The Lua scripts: one file each in `lua/`, one atomic job each, the stamp's layout in front of all.

What two scripts share, or what is a rule of its own beside its Python twin, is a part: a file of functions that is put
in front of a script.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"


def folder_of(module_file: str) -> Path:
    """The `lua/` folder beside a module."""
    return Path(module_file).parent / "lua"


@cache
def source(name: str, folder: Path = _FOLDER, parts: tuple[str, ...] = ()) -> str:
    """The text of `lua/<name>.lua`, behind `lua/stamp.lua` and its `parts`, which are files of the same folder."""
    texts = (_FOLDER / "stamp.lua", *(folder / f"{each}.lua" for each in (*parts, name)))
    return "".join(text.read_text(encoding="utf-8") for text in texts)

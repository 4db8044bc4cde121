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
    """The text of `lua/<name>.lua`, behind `lua/stamp.lua` and its `parts`: files of that folder, or of the core's."""
    places = (folder if (folder / f"{each}.lua").exists() else _FOLDER for each in (*parts, name))
    texts = (
        _FOLDER / "stamp.lua",
        *(place / f"{each}.lua" for place, each in zip(places, (*parts, name), strict=True)),
    )
    return "".join(text.read_text(encoding="utf-8") for text in texts)

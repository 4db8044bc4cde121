"""Runs luacheck over every Lua script, assembled as the server gets it; loudly skipped where there is none.

A warning names the file and line of the source. luacheck is Debian's package lua-check, which root installs if it is
missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import batching.script_args  # noqa: E402
import tasks.script_args  # noqa: E402
from batching.scripts import LuaScript  # noqa: E402

_FOLDER = ROOT / "var" / "luacheck"
_OTHERS = ("tests/benchmarks/wrk/infer.lua",)
_PLACE = re.compile(r"([^:]+):(\d+):(.*)")


def main() -> int:
    """Assemble, check, print each warning once. Returns the exit code."""
    if not shutil.which("luacheck"):
        _install()
    if not shutil.which("luacheck"):
        sys.stderr.write("\n*** SKIPPED: Lua scripts were NOT checked: no luacheck (apt-get install lua-check) ***\n\n")
        return 0
    _FOLDER.mkdir(parents=True, exist_ok=True)
    assembled: dict[str, list[str]] = {}
    for script in (*batching.script_args.ALL, *tasks.script_args.ALL):
        path = _FOLDER / ("-".join((script.name, *script.parts)) + ".lua")
        path.write_text(script.text, encoding="utf-8")
        assembled[str(path.relative_to(ROOT))] = _places(script)
    command = ["luacheck", "--no-color", "--no-cache", "--formatter", "plain", "--codes", *_OTHERS, *assembled]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    warnings = {_in_source(line, assembled) for line in chain(checked.stdout.splitlines(), _too_long()) if line.strip()}
    sys.stdout.writelines(f"{line}\n" for line in (*sorted(warnings), *checked.stderr.splitlines()))
    return int(bool(warnings) or checked.returncode > 0)


def _install() -> None:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", "lua-check"]
        subprocess.run(command, capture_output=True, check=False, timeout=300)


def _places(script: LuaScript) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in script.files
        for number in range(1, len(path.read_text(encoding="utf-8").splitlines()) + 1)
    ]


def _in_source(line: str, assembled: dict[str, list[str]]) -> str:
    place = _PLACE.match(line)
    if not place or place[1] not in assembled:
        return line
    return f"{assembled[place[1]][int(place[2]) - 1]}:{place[3]}"


def _too_long() -> list[str]:
    """Lines that are longer than the text that the server gets, because of the names in them."""
    return [
        f"{path.relative_to(ROOT)}:{number}: line is too long ({len(line)} > 120)"
        for folder in ("batching/lua", "tasks/lua")
        for path in sorted((ROOT / folder).glob("*.lua"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120
    ]


if __name__ == "__main__":
    sys.exit(main())

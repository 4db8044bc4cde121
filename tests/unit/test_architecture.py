"""Promises of docs/architecture.md and of the design about the source tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_path_of_a_request_is_ten_files_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    section = page.partition("### In ten files\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^(\d+)\. `([\w./]+)` (.+)$", section, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 11))
    for _, name, sentence in rows:
        assert (ROOT / name).is_file(), name
        assert sentence.endswith(".")


# What a process keeps at module level on the path of a request, and why that is no state of a request's.
KEPT_AT_IMPORT = {
    ("webapp/http/response.py", "_kinds"): "a bounded memo of a pure function",
    ("webapp/http/response.py", "_statuses"): "a bounded memo of a pure function",
    ("tasks/protocol/ids.py", "_ids"): "random numbers, made anew in a forked child",
}


def test_no_module_on_a_requests_path_keeps_state_at_import() -> None:
    """Two apps in one process, as tests have them, must not see each other's requests."""
    modules = [
        path for folder in ("webapp", "tasks/client", "tasks/protocol") for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(modules) > 60
    found = {(str(path.relative_to(ROOT)), name) for path in modules for name in state_of(ast.parse(path.read_text()))}
    assert found == set(KEPT_AT_IMPORT)


def state_of(module: ast.Module) -> Iterator[str]:
    """Names that a function rebinds with `global`, and empty containers, which something must be meant to fill."""
    for node in ast.walk(module):
        if isinstance(node, ast.Global):
            yield from node.names
    for line in module.body:
        value = line.value if isinstance(line, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Dict | ast.List) and not (value.keys if isinstance(value, ast.Dict) else value.elts):
            (target,) = line.targets if isinstance(line, ast.Assign) else (line.target,)
            yield target.id
        if isinstance(value, ast.Call) and ast.unparse(value.func) in _CONTAINERS and not value.args:
            (target,) = line.targets if isinstance(line, ast.Assign) else (line.target,)
            yield target.id


_CONTAINERS = {"dict", "list", "set", "deque", "defaultdict", "OrderedDict", "WeakSet", "WeakKeyDictionary", "Counter"}


def test_the_check_finds_what_it_is_for() -> None:
    code = "a = {}\nb: list[int] = []\nc = deque()\nd = {1: 2}\n_e = 1\ndef f():\n    global _e\n    _e = 2\n"
    assert set(state_of(ast.parse(code))) == {"a", "b", "c", "_e"}

"""The order of the files, and which of them a worker of pytest-xdist takes together.

folders that start processes first     so that no long file is the last one
the longest files before the others    for the same reason
files of the shared stack as one       so that one worker starts it, not each; likewise those of a folder in e2e, which
                                       have one of their own
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

from config.environ import ROOT

FOLDERS = ("e2e", "chaos", "integration")
# Half a minute or more on a machine with nothing else to do, the longest first.
LONGEST = (
    "e2e/test_installed.py",
    "e2e/test_up.py",
    "e2e/test_attacks_by_number.py",
    "e2e/test_versions.py",
    "e2e/test_rolling.py",
    "e2e/test_cluster.py",
    "e2e/test_attacks.py",
    "e2e/test_collocated.py",
    "e2e/test_flower.py",
    "e2e/bytes",
    "integration/test_cluster.py",
    "integration/test_frontend.py",
    "contract/test_batch_store_traces.py",
)
_SHARED_STACK = "the shared stack"
# Parameters that lead to the stack of tests/e2e/conftest.py; whoever makes one has it under the same names.
_USES_A_STACK = re.compile(r"\b(?:api|gate|stack|store|well): ")
_MAKES_A_STACK = re.compile(r"Stack\(")


def turn(path: Path) -> tuple[bool, int, int]:
    """The rank of a file; equal for most, so that a stable sort leaves them as they are."""
    folder = path.parent.name
    name = f"{folder}/{path.name}"
    if _has_its_own_stack(path):
        folder, name = "e2e", f"e2e/{folder}"
    return (
        not uses_the_shared_stack(path),
        LONGEST.index(name) if name in LONGEST else len(LONGEST),
        FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS),
    )


def _has_its_own_stack(path: Path) -> bool:
    return path.parent.parent.name == "e2e"


@cache
def uses_the_shared_stack(path: Path) -> bool:
    """Return whether a file's tests are of the stack of tests/e2e/conftest.py.

    An error costs another start of that stack, and nothing else.
    """
    if path.parent.name != "e2e" or not path.is_file():
        return False
    text = path.read_text()
    return bool(_USES_A_STACK.search(text)) and not _MAKES_A_STACK.search(text)


class ByStack(LoadFileScheduling):
    """Hands out whole files, and those of the shared stack together."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        path = ROOT / file
        if _has_its_own_stack(path):
            return path.parent.name
        return _SHARED_STACK if uses_the_shared_stack(path) else file

"""What docs/architecture.md says to read is there."""

from __future__ import annotations

import re
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

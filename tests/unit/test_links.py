"""Links between our own pages lead to files and headings that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
# `[text](target)`, also where the text goes over the end of a line; images too.
_LINK = re.compile(r"\]\(([^()\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings; of two alike the second ends in `-1`."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {f"{name}-{n}" if n else name for name, count in found.items() for n in range(count + 1)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    dead = []
    for target in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert not dead

"""What tests serve, as `bunch.toml` has it."""

from __future__ import annotations

import re


def uncached(config: str) -> str:
    """Each model without a cache, but for those that say whether they have one.

    Tests and benchmarks ask the same over and over, and mean to have it computed each time; the systems that Bunch is
    measured beside have no cache.
    """
    tables = re.split(r"(?m)^(?=\[)", config)
    return "".join(map(_uncached, tables))


def _uncached(table: str) -> str:
    head = re.match(r"\[models\.[^.\]]+\]\n", table)
    if head is None or re.search(r"(?m)^cache\b", table):
        return table
    return f"{head[0]}cache = false\n{table[head.end() :]}"

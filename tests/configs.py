"""Configurations for tests, as `bunch.toml` text."""

from __future__ import annotations

import re

import pytest

from config.errors import SettingsError
from config.settings import load_settings


def uncached(config: str) -> str:
    """The configuration with `cache = false` for each model that does not set it.

    Tests and benchmarks repeat the same requests, and need each of them computed; the compared systems have no cache.
    """
    tables = re.split(r"(?m)^(?=\[)", config)
    return "".join(map(_uncached, tables))


def _uncached(table: str) -> str:
    head = re.match(r"\[models\.[^.\]]+\]\n", table)
    if head is None or re.search(r"(?m)^cache\b", table):
        return table
    return f"{head[0]}cache = false\n{table[head.end() :]}"


def problems_of(environ: dict[str, str], config_file: str | None = None) -> dict[str, str]:
    """Key → the whole line that a person would read."""
    with pytest.raises(SettingsError) as caught:
        load_settings(environ, config_file)
    return {each.key: str(each) for each in caught.value.problems}

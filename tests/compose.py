"""docker/compose.yml as compose reads it: variables filled in, without an engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from config.environ import ROOT

FILE = ROOT / "docker" / "compose.yml"
# What its head tells a person to set.
GIVEN = {"REDIS_PASSWORD": "secret0", "FLOWER_AUTH": "user:password"}

_INNERMOST = re.compile(r"(?<!\$)\$\{(\w+)(?:(:?[-?+])([^${}]*))?\}")


class Unset(Exception):
    """A variable that must be set."""


def filled(text: str, given: Mapping[str, str]) -> str:
    """`text` with `${NAME}`, `${NAME:-default}`, `${NAME:+value}` and `${NAME:?message}` replaced, also in each other.

    Raises:
        Unset: a variable with `:?` is not in `given`.
    """
    while found := _INNERMOST.search(text):
        name, how, word = found.groups()
        value = given.get(name, "")
        if how == ":-":
            value = value or word
        elif how == ":+":
            value = word if value else ""
        elif how == ":?" and not value:
            raise Unset(word)
        text = text[: found.start()] + value + text[found.end() :]
    return text.replace("$$", "$")


def services(given: Mapping[str, str] = GIVEN) -> dict[str, Any]:
    """The services of the file, filled in."""
    return dict(_filled(yaml.safe_load(FILE.read_text())["services"], given))


def environment(service: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in service.get("environment", {}).items()}


def _filled(value: Any, given: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, given) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, given) for each in value]
    return filled(value, given) if isinstance(value, str) else value

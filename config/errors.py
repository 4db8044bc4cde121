"""Errors of the configuration.

ConfigError
└── SettingsError   one or more settings are unknown, bad, or contradict each other; carries all of them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and what would be right."""

    key: str
    value: object
    fix: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.fix}"


class ConfigError(Exception):
    """Base of everything that a bad configuration raises."""


class SettingsError(ConfigError):
    """Start-up stops here, with every problem named at once rather than one a run."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def not_of_kind(error: Exception, kind: Any) -> str:
    """The expected kind of a value that cannot be converted to `kind`; msgspec does not list the choices, and does not
    know the description of a kind.
    """
    # A setting with choices and a default that is none of them is a union with None.
    for each in (kind, *get_args(kind)):
        if get_origin(each) is Literal:
            return f"must be one of {', '.join(get_args(each))}"
        for meta in getattr(each, "__metadata__", ()):
            if meta.description:
                return f"must be {meta.description}; {error}"
    return str(error)

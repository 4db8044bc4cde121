"""The shipped example of a function as a model: `source = "workers.models.shout:batchstring"`."""

from __future__ import annotations


def batchstring(inputs: list[str]) -> list[str]:
    """Upper case. Takes and returns 1 to 100 strings."""
    return [text.upper() for text in inputs]

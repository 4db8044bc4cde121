"""An example of a function as a model: `source = "workers.models.shout:batchstring"`."""

from __future__ import annotations


def batchstring(inputs: list[str]) -> list[str]:
    """Return the strings in upper case; 1 to 100 of them."""
    return [text.upper() for text in inputs]

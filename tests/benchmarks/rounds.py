"""Alternates the ways that are compared, and logs a benchmark's progress."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence


def say_on_stderr() -> None:
    """Log progress on stderr; the results go to stdout."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)


def by_turns(ways: Sequence[str], rounds: int) -> Iterator[tuple[int, Sequence[str]]]:
    """The number of each round, from 1, and its order, which alternates so that no way has an advantage over the
    rounds.
    """
    for number in range(1, rounds + 1):
        yield number, ways if number % 2 else ways[::-1]

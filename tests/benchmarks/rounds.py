"""Ways that are compared by turns, and where a benchmark says how far it is."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence


def say_on_stderr() -> None:
    """Progress; the results go to stdout."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)


def by_turns(ways: Sequence[str], rounds: int) -> Iterator[tuple[int, Sequence[str]]]:
    """Each round's number, from 1, and its order: there and back again, so that who comes first in a round has no
    advantage over the rounds.
    """
    for number in range(1, rounds + 1):
        yield number, ways if number % 2 else ways[::-1]

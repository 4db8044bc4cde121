"""Fixtures that several files here share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.claim_rig import Make, Rig


@pytest.fixture
def make() -> Iterator[Make]:
    """`make(…)` makes a rig; it is stopped afterwards."""
    made: list[Rig] = []

    def build(*args: Any, **options: Any) -> Rig:
        made.append(Rig(*args, **options))
        return made[-1]

    yield build
    for rig in made:
        rig.store.before = rig.store.after = lambda call: None
        rig.close()

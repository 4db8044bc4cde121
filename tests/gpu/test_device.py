"""The checks of `python -m tests.gpu` as tests, where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu.checks import CHECKS, Skip, make
from tests.gpu.device import missing, this_device
from tests.gpu.rig import MODELS, Rig, running

if why := missing():
    pytest.skip(f"NOTHING WAS CHECKED ON A GPU: {why}; make gpu", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(this_device(), MODELS, 5.0) as rig:
        yield rig


@pytest.mark.parametrize("name", CHECKS)
def test_on_a_real_device(rig: Rig, name: str) -> None:
    try:
        for figure, value in make(rig, name):
            print(f"{figure}: {value}")
    except Skip as why:
        pytest.skip(str(why))

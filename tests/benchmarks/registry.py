"""Every system under test, ours first."""

from __future__ import annotations

from tests.benchmarks.bunch_system import Bunch, CollocatedBunch, GuardedBunch
from tests.benchmarks.rival_systems import (
    BentoML,
    CeleryBatches,
    FlaskCelery,
    LitServe,
    Mosec,
    RayServe,
    Triton,
    TunedLitServe,
)
from tests.benchmarks.system import System

_IN_ORDER: tuple[type[System], ...] = (
    Bunch,
    GuardedBunch,
    CollocatedBunch,
    FlaskCelery,
    CeleryBatches,
    RayServe,
    BentoML,
    LitServe,
    TunedLitServe,
    Triton,
    Mosec,
)
SYSTEMS = {system.name: system for system in _IN_ORDER}
# README's table.
README_SYSTEMS = tuple(system.name for system in (Bunch, GuardedBunch, Triton, Mosec, FlaskCelery))

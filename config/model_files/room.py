"""The room of one worker's on-demand models: what limits how many are loaded at once, and what each of them takes.

    max_resident of the pool or the server   limit `models`: each model takes a place, with a spare two
    memory_fraction                          a limit for each device: 1 less what the models that stay take

Each limit that is given holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from config.schema import ModelSettings

MODELS = "models"


def needs_of(model: ModelSettings, devices: Iterable[str], max_resident: int) -> dict[str, float]:
    """The room that a model takes. `devices` are those of its executors, one for each."""
    needs = {MODELS: float(model.processes)} if max_resident else {}
    if model.memory_fraction is not None:
        for device in devices:
            needs[device] = needs.get(device, 0.0) + model.processes * model.memory_fraction
    return needs


def room_for(always: Iterable[Mapping[str, float]], devices: Iterable[str], max_resident: int) -> dict[str, float]:
    """The limits. `always` are the needs of the models that stay."""
    room = dict.fromkeys(devices, 1.0)
    for needs in always:
        for device in needs.keys() & room.keys():
            room[device] -= needs[device]
    if max_resident:
        room[MODELS] = float(max_resident)
    return room

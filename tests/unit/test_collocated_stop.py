"""The end of a process that has its queue in its memory: what must be saved goes first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cli.collocated.app import CollocatedApp
from config.settings import Settings
from webapp.app import BunchApp


@pytest.mark.parametrize("in_time", [True, False])
def test_what_is_not_finished_is_saved_before_executors_and_the_rest_end(
    monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    said: list[str] = []
    app: Any = CollocatedApp.__new__(CollocatedApp)
    app.services = SimpleNamespace(settings=Settings(mode="collocated", metrics="off"))
    app._syncing = SimpleNamespace(kill=lambda: None)
    app.runner = SimpleNamespace(
        drain=lambda until: in_time,
        give_back=lambda cold: said.append(f"give back, cold: {cold}"),
        stop=lambda cold: said.append("stop"),
    )
    app.leftovers = SimpleNamespace(save=lambda: said.append("save"))
    monkeypatch.setattr(BunchApp, "stop", lambda self: said.append("the rest"))
    app.stopping()
    app.stop()
    assert said == [f"give back, cold: {not in_time}", "save", "stop", "the rest"]

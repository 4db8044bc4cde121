"""The end of a process that has its queue in its memory: what must be saved goes first."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from cli.collocated.app import CollocatedApp
from cli.collocated.runner import CollocatedRunner, open_in_a_thread
from config.settings import Settings
from tasks.errors import ModelUnavailable
from tests.waiting import PATIENCE_S
from webapp.app import BunchApp
from workers.report import OFFLINE
from workers.runner import WorkerRunner


@pytest.mark.parametrize("in_time", [True, False])
def test_what_is_not_finished_is_saved_before_executors_and_the_rest_end(
    monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    said: list[str] = []
    app: Any = CollocatedApp.__new__(CollocatedApp)
    app.services = SimpleNamespace(settings=Settings(mode="collocated", metrics="off"))
    app._ending = threading.Event()
    app._syncing = SimpleNamespace(join=lambda within_s: said.append(f"told to end: {app._ending.is_set()}"))
    app.runner = SimpleNamespace(
        drain=lambda until: in_time,
        give_back=lambda cold: said.append(f"give back, cold: {cold}"),
        stop=lambda cold: said.append("stop"),
    )
    app.leftovers = SimpleNamespace(save=lambda: said.append("save"))
    monkeypatch.setattr(BunchApp, "stop", lambda self: said.append("the rest"))
    app.stopping()
    app.stop()
    assert said == [f"give back, cold: {not in_time}", "told to end: True", "save", "stop", "the rest"]


def test_a_failed_gpu_refuses_whoever_waits_and_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(WorkerRunner, "_go_offline", lambda self, reason: said.append("gives back"))
    app: Any = CollocatedApp.__new__(CollocatedApp)
    client = SimpleNamespace(refuse=lambda refusal: said.append(refusal()))
    app.services = SimpleNamespace(client=client)
    app.end_in_failure = lambda: said.append("ends")
    runner: Any = CollocatedRunner.__new__(CollocatedRunner)
    runner.on_offline = app._fail
    runner._go_offline("XID 79")
    assert (said[0], type(said[1]), said[2]) == ("gives back", ModelUnavailable, "ends")
    assert "XID 79" in str(said[1])


def test_nobody_waits_at_the_stop_for_executors_whose_gpu_has_failed() -> None:
    runner: Any = CollocatedRunner.__new__(CollocatedRunner)
    runner._store = SimpleNamespace(waiting=3)
    runner._report = SimpleNamespace(state=OFFLINE)
    assert not runner.drain(math.inf)


def test_a_driver_that_hangs_lets_the_event_loop_go_on() -> None:
    answered, asked = threading.Event(), threading.Event()

    class Hanging:
        def read(self, names: Any) -> list[Any]:
            asked.set()
            assert answered.wait(PATIENCE_S)
            return [*names, threading.get_ident()]

        def close(self) -> None:
            closed.append(threading.get_ident())

    closed: list[int] = []
    driver = open_in_a_thread(Hanging)
    assert driver is not None
    reading = gevent.spawn(driver.read, ["0"])
    # In a thread of gevent's, so that the greenlet can run and ask.
    assert gevent.get_hub().threadpool.apply(asked.wait, (PATIENCE_S,))
    # This greenlet runs while that one waits for the driver.
    answered.set()
    assert reading.get(timeout=PATIENCE_S)[0] == "0"
    driver.close()
    assert closed == [reading.value[1]] != [threading.get_ident()]
    assert open_in_a_thread(lambda: None) is None

"""The bootstep: kombu never pops, the runner starts once, and stops when the worker does and not before."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, bootsteps
from celery.worker import state as worker_state
from kombu import Connection
from kombu.asynchronous import Hub

from batching.claim.bootstep import BatchingStep


class Runner:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.consumer: Any = None

    def start(self) -> None:
        self.calls.append("start")

    def stop_claiming(self) -> None:
        self.calls.append("stop claiming")

    def stop(self, *, cold: bool = False) -> None:
        self.calls.append("stop cold" if cold else "stop")

    def info(self) -> dict[str, Any]:
        return {"in_hand": 2}


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def consumer(runner: Runner) -> SimpleNamespace:
    return make_consumer(SimpleNamespace(bunch_runner=runner))


def make_consumer(app: Any) -> SimpleNamespace:
    """As much of Celery's consumer as the step touches; a new task consumer as after each connection."""
    qos = SimpleNamespace(can_consume=lambda: True)
    return SimpleNamespace(
        app=app,
        blueprint=SimpleNamespace(state=bootsteps.RUN),
        task_consumer=SimpleNamespace(channel=SimpleNamespace(qos=qos)),
        hub=None,
    )


def test_kombu_has_no_credit_to_pop_with(consumer: SimpleNamespace) -> None:
    BatchingStep(consumer).start(consumer)
    assert consumer.task_consumer.channel.qos.can_consume() is False


def test_a_reconnect_denies_credit_anew_and_starts_nothing_twice(consumer: SimpleNamespace, runner: Runner) -> None:
    step = BatchingStep(consumer)
    step.start(consumer)
    step.stop(consumer)
    again = make_consumer(consumer.app)
    step.start(again)
    assert again.task_consumer.channel.qos.can_consume() is False
    assert runner.calls == ["start"]
    assert runner.consumer is again


def test_a_reconnect_leaves_nothing_of_the_lost_connection_in_the_event_loop(consumer: SimpleNamespace) -> None:
    hub = Hub()
    step = BatchingStep(consumer)
    lost: list[weakref.ref[Any]] = []
    try:
        hub.on_tick.add(print)
        for _ in range(3):
            # As the consumer does; no server is asked for it.
            connection = Connection("redis://localhost:1")
            connection.transport.register_with_event_loop(SimpleNamespace(client=connection), hub)
            lost.append(weakref.ref(connection.transport))
            consumer.hub, consumer.connection = hub, connection
            step.start(consumer)
            assert len(hub.on_tick) == 2
        hub.timer.clear()
        del connection
        gc.collect()
        assert [each() is None for each in lost] == [True, True, False]
    finally:
        hub.close()


def test_a_shutdown_claims_nothing_more_and_then_stops(consumer: SimpleNamespace, runner: Runner) -> None:
    step = BatchingStep(consumer)
    step.start(consumer)
    consumer.blueprint.state = bootsteps.CLOSE
    step.close(consumer)
    step.stop(consumer)
    assert runner.calls == ["start", "stop claiming", "stop"]


@pytest.mark.parametrize(("asked", "done"), [(None, "stop"), (False, "stop"), (True, "stop cold"), (1, "stop cold")])
def test_a_cold_shutdown_finishes_nothing(
    consumer: SimpleNamespace, runner: Runner, monkeypatch: pytest.MonkeyPatch, asked: Any, done: str
) -> None:
    # What Celery's handler of SIGQUIT leaves behind.
    monkeypatch.setattr(worker_state, "should_terminate", asked)
    step = BatchingStep(consumer)
    step.start(consumer)
    consumer.blueprint.state = bootsteps.CLOSE
    step.stop(consumer)
    assert runner.calls == ["start", done]


def test_a_worker_that_never_started_has_nothing_to_stop(consumer: SimpleNamespace, runner: Runner) -> None:
    step = BatchingStep(consumer)
    consumer.blueprint.state = bootsteps.TERMINATE
    step.stop(consumer)
    step.shutdown(consumer)
    assert "stop" not in runner.calls


def test_stats_have_a_key_of_their_own(consumer: SimpleNamespace) -> None:
    assert BatchingStep(consumer).info(consumer) == {"bunch": {"in_hand": 2}}


def test_it_starts_after_the_queues_are_declared() -> None:
    assert BatchingStep.requires == {"celery.worker.consumer.tasks:Tasks"}
    app = Celery("plain", set_as_current=False)
    app.steps["consumer"].add(BatchingStep)
    assert BatchingStep in app.steps["consumer"]

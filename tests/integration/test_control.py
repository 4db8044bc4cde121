"""Celery's remote control in Bunch's words, on real workers that are busy with a batch, and over their restarts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.worker.control import Panel

from tasks.celery.control_commands import COMMANDS
from tasks.fleet.registry_reader import Fleet
from tests.integration.celery_harness import (
    PATIENCE_S,
    CeleryProcess,
    bunch_worker,
    close_client,
    infer,
    plain_client,
    wait_for_models,
)
from tests.valkey import PrivateValkey
from tests.waiting import wait_until
from workers.celery import control

NODE = "bunch@here"
# A batch is held until the test lets go: who waited for it would never answer.
QUICK_S = 30.0
MODELS = """\
[models.echo]
source = "{source}"
options = {{ path = "{seen}" }}
policy = "idle"
timeout_ms = 30000
instances = 2
"""
WITNESS = "tests.integration.celery_witness:Witness"


class Rig:
    """One worker with two executors, and a client that has never heard of Bunch."""

    def __init__(self, folder: Path, valkey: PrivateValkey) -> None:
        self.folder = folder
        self.client = plain_client(valkey.url)
        self.redis = valkey.client()
        self._valkey = valkey
        self._worker: CeleryProcess | None = None

    def start(self) -> None:
        self._worker = bunch_worker(self.folder, self._valkey, self.toml())
        self._worker.start()
        wait_for_models(self.redis, "echo")
        wait_until(lambda: self.client.control.inspect(timeout=0.5, destination=[NODE]).ping(), "it answers")

    def stop(self) -> int:
        return self._worker.stop() if self._worker else 0

    def close(self) -> None:
        self.stop()
        close_client(self.client)
        self.redis.close()

    def toml(self, source: str = WITNESS) -> str:
        return MODELS.format(source=source, seen=self.folder / "seen.jsonl")

    def edit(self, source: str) -> None:
        (self.folder / "bunch.toml").write_text(self.toml(source))

    def tell(self, command: str, **arguments: Any) -> Any:
        """The worker's reply, which must come at once."""
        began = time.monotonic()
        replies = self.client.control.broadcast(
            command, arguments, destination=[NODE], reply=True, timeout=PATIENCE_S, limit=1
        )
        assert time.monotonic() - began < QUICK_S, command
        (reply,) = replies
        return reply[NODE]

    def ok(self, command: str, **arguments: Any) -> Any:
        reply = self.tell(command, **arguments)
        assert reply.keys() == {"ok"}, reply
        return reply["ok"]

    def serving(self) -> Any:
        return self.tell("bunch_stats")["serving"]["echo"]

    def row(self) -> Any:
        (row,) = Fleet(self.redis).workers()
        return row

    def executors(self) -> list[Any]:
        return list(self.row().models)

    def send(self, value: Any = None, tier: str = "paid") -> Any:
        return infer(self.client, value or uuid.uuid4().hex, queue=f"bunch.echo.{tier}").apply_async()

    def get(self, result: Any) -> Any:
        return result.get(timeout=PATIENCE_S)

    def waits(self, result: Any) -> bool:
        """Still queued after a claim would long have taken it."""
        time.sleep(0.3)
        return bool(self.tell("explain", ids=[result.id])[result.id]["status"] == "queued")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    server = PrivateValkey()
    server.start()
    rig = Rig(tmp_path_factory.mktemp("remote"), server)
    try:
        rig.start()
        yield rig
    finally:
        rig.close()
        server.stop()


def test_every_command_is_answered_at_once_during_a_batch(rig: Rig) -> None:
    gates, held = [], []
    for number in (1, 2):
        # One after the other, or they would be one batch.
        gates.append(rig.folder / uuid.uuid4().hex)
        held.append(rig.send({"hold": str(gates[-1])}))
        wait_until(lambda number=number: rig.tell("bunch_stats")["in_hand"] == number, "another executor is busy")
    about = rig.tell("explain", ids=[held[0].id])[held[0].id]
    assert (about["status"], about["model"], about["tier"]) == ("running", "echo", "paid")
    rig.ok("pause", model="echo", tier="free")
    rig.ok("resume", model="echo")
    rig.ok("tune", model="echo", changes={})
    rig.ok("drain")
    assert rig.row().state in {"running", "draining"}
    rig.ok("resume")
    rig.ok("reload_model", model="echo", changes={})
    # In hand through all of it, and nobody was torn out of a batch.
    for gate in gates:
        gate.touch()
    assert [rig.get(each) for each in held] == [{"hold": str(gate)} for gate in gates]
    wait_until(lambda: not rig.serving()["reload"]["running"], "the reload is over")


def test_a_paused_tier_waits_and_the_others_do_not(rig: Rig) -> None:
    rig.ok("pause", model="echo", tier="free")
    free, paid = rig.send(tier="free"), rig.send(tier="paid")
    rig.get(paid)
    assert rig.waits(free)
    assert rig.serving()["paused"] == ["free"]
    rig.ok("resume", model="echo", tier="free")
    rig.get(free)


def test_a_pause_and_a_tuned_policy_outlive_the_worker(rig: Rig) -> None:
    rig.ok("pause", model="echo")
    assert rig.ok("tune", model="echo", changes=["max_batch_size=3", "policy=fixed"])["max_batch_size"] == 3
    assert rig.stop() == 0
    rig.start()
    late = rig.send()
    assert rig.waits(late)
    rig.ok("resume", model="echo")
    rig.get(late)
    assert (rig.serving()["policy"], rig.serving()["max_batch_size"]) == ("fixed", 3)
    rig.ok("tune", model="echo", changes=["max_batch_size=", "policy="])
    assert (rig.serving()["policy"], rig.serving()["max_batch_size"]) == ("idle", 64)


def test_what_is_tuned_holds_from_the_next_batch_on(rig: Rig) -> None:
    rig.ok("pause", model="echo")
    rig.ok("tune", model="echo", changes={"max_batch_size": 4})
    results = [rig.send() for _ in range(12)]
    rig.ok("resume", model="echo")
    for each in results:
        rig.get(each)
    # The batch log is written a moment after the answers.
    wait_until(lambda: rig.tell("explain", ids=[results[-1].id])[results[-1].id]["batch"]["neighbours"], "written down")
    sizes = {rig.tell("explain", ids=[each.id])[each.id]["batch"]["size"] for each in results}
    assert max(sizes) <= 4
    rig.ok("tune", model="echo", changes={"max_batch_size": ""})


def test_a_drained_worker_finishes_and_takes_nothing_more(rig: Rig) -> None:
    gate = rig.folder / uuid.uuid4().hex
    held = rig.send({"hold": str(gate)})
    wait_until(lambda: rig.tell("bunch_stats")["in_hand"] == 1, "an executor is busy")
    rig.ok("drain")
    wait_until(lambda: rig.row().state == "draining", "it says so")
    late = rig.send()
    assert rig.waits(late)
    gate.touch()
    rig.get(held)
    wait_until(lambda: rig.row().state == "drained", "it is empty")
    assert rig.waits(late)
    assert Fleet(rig.redis).healthy() == []
    rig.ok("resume")
    rig.get(late)


def test_a_reload_takes_the_file_as_it_is_now_one_executor_after_the_other(rig: Rig) -> None:
    before = {each.pid for each in rig.executors()}
    rig.edit("workers.models.echo:Echo")
    config = (rig.folder / "bunch.toml").read_text()
    # Echo takes no path.
    (rig.folder / "bunch.toml").write_text(config.replace("options", "#"))
    rig.ok("reload_model", model="echo", changes={})
    down = 0
    deadline = time.monotonic() + PATIENCE_S
    while rig.serving()["reload"]["running"] or not before.isdisjoint({each.pid for each in rig.executors()}):
        assert time.monotonic() < deadline
        down = max(down, sum(each["state"] != "ready" for each in rig.tell("bunch_stats")["models"]))
        assert rig.get(rig.send())
    assert down <= 1
    assert rig.serving()["source"] == "workers.models.echo:Echo"


def test_a_source_that_does_not_load_leaves_everything_as_it_was(rig: Rig) -> None:
    rig.ok("reload_model", model="echo", changes={"source": "no_such_module:Model"})
    wait_until(lambda: rig.serving()["reload"]["refused"], "it is refused")
    wait_until(lambda: {each.state for each in rig.executors()} == {"ready"}, "both executors are back")
    assert "no_such_module" in rig.serving()["reload"]["refused"]
    assert rig.serving()["source"] == "workers.models.echo:Echo"
    assert rig.get(rig.send("still here")) == "still here"


def test_celerys_own_restart_of_the_pool_restarts_the_executors(rig: Rig) -> None:
    before = {each.pid for each in rig.executors()}
    rig.ok("pool_restart")
    wait_until(lambda: before.isdisjoint({each.pid for each in rig.executors() if each.pid}), "all are new")
    wait_until(lambda: {each.state for each in rig.executors()} == {"ready"}, "all are ready")
    assert rig.get(rig.send("after")) == "after"


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        ("pause", {"model": "nobody"}, "model 'nobody' is not served"),
        ("pause", {"model": "echo", "tier": "gold"}, "enterprise, paid, free"),
        ("tune", {"model": "echo", "changes": {"max_batch_size": "many"}}, "max_batch_size"),
        ("tune", {"model": "echo", "changes": ["policy"]}, "key=value"),
        ("reload_model", {"model": "echo", "changes": {"max_batch_size": 3}}, "source"),
    ],
)
def test_a_mistake_is_answered_with_what_is_wrong(rig: Rig, command: str, arguments: dict[str, Any], says: str) -> None:
    assert says in rig.tell(command, **arguments)["error"]


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        ("add_consumer", {"queue": "bunch.other.paid"}, "claimed in batches"),
        ("add_consumer", {"queue": "celery"}, "claimed in batches"),
        ("cancel_consumer", {"queue": "bunch.echo.paid"}, "manage.py pause"),
        ("rate_limit", {"task_name": "bunch.infer", "rate_limit": "1/m"}, "per API key"),
        ("time_limit", {"task_name": "bunch.infer", "soft": 1, "hard": 2}, "timeout_ms"),
        ("pool_grow", {"n": 3}, "instances"),
        ("pool_shrink", {"n": 1}, "instances"),
        ("autoscale", {"max": 3, "min": 1}, "manage.py autoscale"),
        ("revoke_by_stamped_headers", {"headers": {"a": ["b"]}}, "by task id"),
    ],
)
def test_what_has_no_effect_on_batches_says_so(rig: Rig, command: str, arguments: dict[str, Any], says: str) -> None:
    (reply,) = rig.client.control.broadcast(
        command, arguments, destination=[NODE], reply=True, timeout=PATIENCE_S, limit=1
    )
    assert "has no effect here" in reply[NODE]["error"]
    assert says in reply[NODE]["error"]
    queues = {
        each["name"]
        for each in rig.client.control.inspect(timeout=PATIENCE_S, destination=[NODE]).active_queues()[NODE]
    }
    assert queues == {f"bunch.echo.{tier}" for tier in ("enterprise", "paid", "free")}
    assert rig.get(rig.send(says)) == says


def test_a_shutdown_by_remote_control_is_a_warm_one(rig: Rig) -> None:
    gate = rig.folder / uuid.uuid4().hex
    gate.touch()
    result = rig.send()
    rig.get(result)
    rig.client.control.shutdown(destination=[NODE])
    assert rig._worker is not None
    assert rig._worker.process.wait(PATIENCE_S) == 0
    assert Fleet(rig.redis).workers() == []


def test_every_command_of_the_list_has_its_form_and_does_something() -> None:
    """The ops worker's answers are made from the same list (`tasks.ops.no_op_commands`)."""
    ours = {name for name, command in Panel.data.items() if command.__module__ == control.__name__}
    assert ours == set(COMMANDS)
    for name, command in COMMANDS.items():
        registered = Panel.meta[name]
        assert registered.type == ("inspect" if command.asks else "control")
        assert (registered.signature or "", registered.variadic) == (command.signature, command.variadic)

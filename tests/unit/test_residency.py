"""The residency of one worker, over executors and queues that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batching.claim.claim_switch import ClaimSwitch
from batching.claim.idle_watch import IdleWatch
from batching.claim.loop import ClaimLoop
from batching.claim.loop_state import LoopState
from batching.claim.store import View
from batching.executor import ExecutorState
from batching.policy import WhenIdle
from batching.policy.residency import Stage
from config.process.devices import Machine, placement
from config.schema import ModelSettings
from workers.executor.on_demand import OnDemandExecutor
from workers.residency import assembly
from workers.residency.assembly import make_residency
from workers.residency.member import Member, UnloadedSeat
from workers.residency.residency import Residency

LOAD_S = 2.0


class Executor:
    """Loads and unloads when a test says so."""

    def __init__(self) -> None:
        self.state = ExecutorState.UNLOADED
        self.is_out = True
        self.requests, self.used_at = 0, float("-inf")

    def load(self) -> None:
        self.state, self.is_out = ExecutorState.STARTING, False

    def unload(self) -> None:
        if self.is_out:
            self.state = ExecutorState.UNLOADED

    def loaded(self) -> None:
        self.state = ExecutorState.READY

    def failed(self) -> None:
        self.state, self.is_out = ExecutorState.FAILED, True

    def gone(self) -> None:
        self.state, self.is_out = ExecutorState.UNLOADED, True


class Loop:
    def __init__(self) -> None:
        self.gate = ClaimSwitch(Condition())
        self.gate.resting = True
        self.in_hand = 0
        self.state: LoopState[Any] = LoopState(WhenIdle(16))


class World:
    """Models `a`, `b`, … with one executor each, and a clock."""

    def __init__(self, count: int, room: float) -> None:
        self.now = 100.0
        self.open = True
        self.elsewhere: set[str] = set()
        self.depths = dict.fromkeys("abcdef"[:count], 0)
        self.looks = 0
        store = cast("Any", SimpleNamespace(look=self.look))
        watch = IdleWatch(store, self.clock)
        self.residency = Residency({"models": room}, store, self.elsewhere.__contains__, lambda: self.open, self.clock)
        self.executors = {name: Executor() for name in self.depths}
        self.loops = {name: Loop() for name in self.depths}
        for name in self.depths:
            pairs = [(cast("ClaimLoop", self.loops[name]), cast("OnDemandExecutor", self.executors[name]))]
            seat = UnloadedSeat(watch, name, self.residency.wake)
            model = ModelSettings(name=name, source="x")
            self.residency.members[name] = Member(model, {"models": 1.0}, pairs, seat)
        self.act()

    def clock(self) -> float:
        return self.now

    def look(self, model: str, paused: frozenset[int]) -> View:
        self.looks += 1
        depth = 0 if paused else self.depths[model]
        return View(1_000, (depth,), 1_000 if depth else 0, 0)

    def act(self, after_s: float = 0.0) -> float:
        """Look and act until nothing is left to do; returns when to look again."""
        self.now += after_s
        while not (wait_s := self.residency.round()):
            pass
        return wait_s

    def asks(self, name: str, depth: int = 1) -> None:
        self.depths[name] = depth
        self.residency.members[name].seat.let_go()
        self.act()

    def serve(self, name: str) -> None:
        """Load it, and answer what waits."""
        self.asks(name)
        self.now += LOAD_S
        self.executors[name].loaded()
        self.depths[name] = 0
        self.act()

    def stages(self) -> dict[str, Stage]:
        return {name: each.stage for name, each in self.residency.members.items()}

    def claims(self, name: str) -> bool:
        return not self.loops[name].gate.is_shut


@pytest.fixture
def world() -> Callable[..., World]:
    return World


def test_a_model_is_loaded_when_requests_wait_and_claims_from_then_on() -> None:
    world = World(2, room=1.0)
    assert not world.claims("a")
    world.serve("a")
    assert world.stages() == {"a": Stage.RESIDENT, "b": Stage.UNLOADED}
    assert (world.claims("a"), world.claims("b")) == (True, False)
    assert world.residency.members["a"].load_s == pytest.approx(LOAD_S)


def test_unloaded_models_without_requests_cost_no_look_of_their_own() -> None:
    world = World(6, room=1.0)
    before = world.looks
    for _ in range(20):
        world.act(after_s=1.0)
    assert world.looks == before


def test_another_model_gets_the_room_when_the_batches_of_the_first_are_finished() -> None:
    world = World(2, room=1.0)
    world.serve("a")
    world.loops["a"].in_hand = 1
    world.asks("b")
    assert world.stages()["a"] is Stage.RESIDENT, "its minimum residence is not over"
    world.act(after_s=LOAD_S)
    assert (world.stages()["a"], world.claims("a")) == (Stage.DRAINING, False)
    world.loops["a"].in_hand = 0
    world.act()
    assert world.stages() == {"a": Stage.LEAVING, "b": Stage.UNLOADED}
    world.executors["a"].gone()
    world.act()
    assert world.stages() == {"a": Stage.UNLOADED, "b": Stage.LOADING}


def test_a_claim_under_way_is_waited_for() -> None:
    world = World(2, room=1.0)
    world.serve("a")
    world.loops["a"].gate.resting = False
    world.asks("b")
    world.act(after_s=LOAD_S)
    assert world.stages()["a"] is Stage.DRAINING
    world.loops["a"].gate.resting = True
    world.act()
    assert world.stages()["a"] is Stage.LEAVING


def test_a_load_that_fails_gives_its_room_to_others_and_is_tried_again_after_longer_pauses() -> None:
    world = World(2, room=1.0)
    world.asks("a")
    world.executors["a"].failed()
    world.act()
    assert (world.stages()["a"], world.claims("a")) == (Stage.UNLOADED, False)
    assert world.executors["a"].state is ExecutorState.FAILED
    world.serve("b")
    world.act(after_s=LOAD_S)
    assert world.stages()["b"] is Stage.LEAVING, "what waits for `a` is tried again"
    world.executors["b"].gone()
    world.act()
    world.executors["a"].failed()
    world.act()
    assert world.residency.members["a"].retry_in_ms(world.now) == 2_000
    world.depths["a"] = 0
    world.act(after_s=2.0)
    assert world.executors["a"].state is ExecutorState.UNLOADED, "requests are let in again"


def test_a_load_that_failed_is_seen_also_if_a_reload_has_come_in_between() -> None:
    world = World(1, room=1.0)
    world.asks("a")
    world.executors["a"].failed()
    world.executors["a"].unload()
    world.act()
    assert (world.stages()["a"], world.claims("a")) == (Stage.UNLOADED, False)
    world.act(after_s=1.0)
    assert world.stages()["a"] is Stage.LOADING


def test_a_worker_that_drains_loads_nothing() -> None:
    world = World(1, room=1.0)
    world.open = False
    world.asks("a")
    assert world.stages() == {"a": Stage.UNLOADED}
    world.open = True
    world.act()
    assert world.stages() == {"a": Stage.LOADING}


def test_what_another_worker_has_loaded_is_left_to_it_for_as_long_as_it_keeps_up() -> None:
    world = World(1, room=1.0)
    world.elsewhere.add("a")
    world.asks("a")
    assert world.stages() == {"a": Stage.UNLOADED}
    world.now += 1.0
    # The look says that the oldest has just come: the other worker keeps up.
    world.act()
    assert world.stages() == {"a": Stage.UNLOADED}
    world.elsewhere.clear()
    world.act()
    assert world.stages() == {"a": Stage.LOADING}


def test_a_paused_model_is_not_loaded() -> None:
    world = World(1, room=1.0)
    world.depths["a"] = 1
    world.loops["a"].gate.pause(frozenset({0, 1, 2}))
    world.act()
    assert world.stages() == {"a": Stage.UNLOADED}
    world.loops["a"].gate.pause(frozenset())
    world.act(after_s=1.0)
    assert world.stages() == {"a": Stage.LOADING}


def test_an_operators_hold_and_release_do_not_make_an_unloaded_model_claim() -> None:
    world = World(1, room=1.0)
    gate = world.loops["a"].gate
    gate.hold()
    gate.release()
    assert gate.is_shut
    gate.come_back()
    assert not gate.is_shut


def test_a_process_that_dies_keeps_its_room_while_it_is_replaced() -> None:
    world = World(2, room=1.0)
    world.serve("a")
    world.executors["a"].load()
    world.asks("b")
    world.act(after_s=10.0)
    assert world.stages() == {"a": Stage.LOADING, "b": Stage.UNLOADED}
    world.executors["a"].loaded()
    world.act()
    assert world.residency.members["a"].load_s == pytest.approx(LOAD_S), "a replacement is no load"


def test_a_model_whose_processes_die_again_and_again_leaves_for_another_all_the_same() -> None:
    world = World(2, room=1.0)
    world.serve("a")
    world.asks("b")
    for _ in range(3):
        # It never serves for as long as its load took.
        world.executors["a"].load()
        world.act(after_s=LOAD_S / 2)
        world.executors["a"].loaded()
        world.act()
    assert world.stages()["a"] is Stage.LEAVING
    world.executors["a"].gone()
    world.serve("b")
    world.depths["b"] = 0
    world.asks("a")
    world.act(after_s=LOAD_S)
    world.executors["b"].gone()
    world.act()
    world.executors["a"].loaded()
    world.asks("b")
    assert world.stages()["a"] is Stage.RESIDENT, "its next residence is a whole one"


def test_a_wanted_model_is_loaded_without_requests_and_a_dismissed_one_leaves_without_need() -> None:
    world = World(2, room=2.0)
    assert world.residency.want("a")
    world.act()
    world.executors["a"].loaded()
    world.act()
    assert world.residency.dismiss("a")
    world.act()
    world.act(after_s=1.0)
    assert world.stages()["a"] is Stage.LEAVING
    world.executors["a"].gone()
    world.act()
    assert world.stages()["a"] is Stage.UNLOADED
    assert not world.residency.want("else")


def test_the_time_until_an_unloaded_model_is_ready_counts_the_residence_of_others() -> None:
    world = World(2, room=1.0)
    assert world.residency.ready_in_s("a") is None, "its load time is not known"
    world.serve("a")
    assert world.residency.ready_in_s("a") == 0.0
    world.asks("b")
    world.act(after_s=LOAD_S)
    world.executors["a"].gone()
    world.act()
    world.now += 3.0
    world.executors["b"].loaded()
    world.depths["b"] = 0
    world.act()
    # The residence of `b`, and the load of `a`.
    assert world.residency.ready_in_s("a") == pytest.approx(3.0 + LOAD_S)


def test_two_models_on_one_gpu_share_its_memory_however_they_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(("GPU-aa-1",))
    monkeypatch.setattr(assembly, "this_machine", lambda: machine)
    models = {
        "a": ModelSettings(name="a", source="x:y", residency="on_demand", memory_fraction=0.6),
        "b": ModelSettings(name="b", source="x:y", residency="on_demand", memory_fraction=0.6, devices=("cuda:0",)),
        "c": ModelSettings(name="c", source="x:y", memory_fraction=0.3, device="cuda:0"),
    }
    places = [
        (model, SimpleNamespace(placement=placement(model, None, 0, machine)), Loop()) for model in models.values()
    ]
    served = SimpleNamespace(models=models, max_resident=0)
    watch = IdleWatch(cast("Any", None))
    made = make_residency(cast("Any", served), cast("Any", places), cast("Any", None), watch, bool, lambda: True)
    assert made._room == {"GPU-aa-1": pytest.approx(0.7)}
    assert {name: each.needs for name, each in made.members.items()} == {
        "a": {"GPU-aa-1": 0.6},
        "b": {"GPU-aa-1": 0.6},
    }

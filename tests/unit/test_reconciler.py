"""A worker follows its operators: loops are held, paused and tuned, executors replaced one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from batching.executor import ExecutorState
from config.settings import ModelSettings
from config.tiers import TIERS, Tier
from tasks.fleet.desired_state import Desired, Reload
from workers.reconciler import Reconciler

FILE = ModelSettings(name="m", source="pkg:Old")
LONG_S = 20.0


class Loop:
    """A claim loop as far as it is steered."""

    state = SimpleNamespace(safe_size=None)
    in_hand = 0

    def __init__(self) -> None:
        self.gate = self
        self.held = False
        self.paused: frozenset[int] = frozenset()
        self.model: Any = None
        self.policy: Any = None

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False

    def pause(self, ranks: frozenset[int]) -> None:
        self.paused = ranks

    def use(self, model: Any, policy: Any) -> None:
        self.model, self.policy = model, policy

    def wait_empty(self, timeout_s: float) -> bool:
        assert self.held
        return True


@dataclass
class Executor:
    """Ready at once, unless its source is in `broken`. `down` is shared: who is being replaced right now."""

    name: str
    loop: Loop
    down: set[str]
    most_down: list[int]
    may_load: threading.Event
    broken: tuple[str, ...] = ()
    loaded: ModelSettings | None = FILE
    state: ExecutorState = ExecutorState.READY
    error: str | None = None
    sources: list[str] = field(default_factory=list)

    def replace(self, model: ModelSettings) -> None:
        assert self.loop.held
        self.sources.append(model.source)
        self.down.add(self.name)
        self.most_down.append(len(self.down))
        self.loaded, self.state = None, ExecutorState.STARTING
        threading.Timer(0.01, self._start, (model,)).start()

    def _start(self, model: ModelSettings) -> None:
        self.may_load.wait(LONG_S)
        self.down.discard(self.name)
        if model.source in self.broken:
            self.error, self.state = "these weights are not there", ExecutorState.FAILED
        else:
            self.loaded, self.error, self.state = model, None, ExecutorState.READY


class Redis:
    """The lock of a reload."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._lock = threading.Lock()

    def set(self, key: str, value: str, *, nx: bool, px: int) -> bool:
        with self._lock:
            taken = key not in self._held
            self._held.add(key)
            return taken

    def delete(self, key: str) -> None:
        self._held.discard(key)

    def pexpire(self, key: str, px: int) -> None:
        """Kept anyway."""


class Wall:
    """`tasks.fleet.desired_state.DesiredState` of all workers."""

    def __init__(self) -> None:
        self.desired = Desired()
        self.refusals: list[tuple[int, str]] = []

    def read(self, models: Any) -> dict[str, Desired]:
        return dict.fromkeys(models, self.desired)

    def refuse(self, model: str, generation: int, why: str) -> None:
        self.refusals.append((generation, why))
        self.desired = Desired(reload=self.desired.reload, refused=generation, refusal=why)


class Fleet:
    """`workers` workers of two executors each, over one Redis."""

    def __init__(self, workers: int = 1, broken: tuple[str, ...] = ()) -> None:
        self.wall = Wall()
        self.down: set[str] = set()
        self.most_down: list[int] = []
        self.may_load = threading.Event()
        self.may_load.set()
        self.file = {"m": FILE}
        redis: Any = Redis()
        self.pairs: list[list[tuple[Loop, Executor]]] = []
        self.steerings: list[Reconciler] = []
        for number in range(workers):
            loops = [Loop(), Loop()]
            executors = [
                Executor(f"{number}/{n}", loop, self.down, self.most_down, self.may_load, broken)
                for n, loop in enumerate(loops)
            ]
            pairs: Any = list(zip(loops, executors, strict=True))
            self.pairs.append(pairs)
            reconciler = Reconciler(
                redis,
                f"w{number}",
                [(FILE, loop, executor) for loop, executor in pairs],
                make_policy=lambda model: (model.policy, model.max_batch_size),  # type: ignore[arg-type,return-value]
                read_file=lambda: self.file,
            )
            reconciler._controls = self.wall  # type: ignore[assignment]
            self.steerings.append(reconciler)

    def sync(self) -> None:
        for each in self.steerings:
            each.sync()

    @property
    def loops(self) -> list[Loop]:
        return [loop for pairs in self.pairs for loop, _ in pairs]

    @property
    def executors(self) -> list[Executor]:
        return [executor for pairs in self.pairs for _, executor in pairs]

    def settle(self) -> None:
        """Every reload that has begun is over: each is a thread of its own."""
        until = time.monotonic() + LONG_S
        # One may begin another at its end.
        while time.monotonic() < until:
            under_way = [each for each in threading.enumerate() if each.name.startswith("reload ")]
            if not under_way:
                break
            under_way[0].join(LONG_S)
        assert self.reloaded(), "a reload never ended"

    def reloaded(self) -> bool:
        return not any(each.describe()["m"]["reload"]["running"] for each in self.steerings)


@pytest.fixture
def fleet() -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(*args: Any) -> Fleet:
        made.append(Fleet(*args))
        return made[-1]

    yield make
    for each in made:
        for reconciler in each.steerings:
            reconciler.stop()
        each.settle()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.reconciler._POLL_S", 0.002)


def test_nothing_is_claimed_before_it_is_known_what_is_paused(fleet: Callable[..., Fleet]) -> None:
    here = fleet()
    here.wall.desired = Desired(paused=frozenset({Tier.FREE}))
    assert all(loop.held for loop in here.loops)
    here.sync()
    assert not any(loop.held for loop in here.loops)
    assert {loop.paused for loop in here.loops} == {frozenset({Tier.FREE.rank})}
    here.wall.desired = Desired(paused=frozenset(TIERS))
    here.sync()
    assert {len(loop.paused) for loop in here.loops} == {3}


def test_a_tuned_policy_comes_and_goes(fleet: Callable[..., Fleet]) -> None:
    here = fleet()
    here.wall.desired = Desired(tuned={"max_batch_size": 8})
    here.sync()
    assert {loop.policy for loop in here.loops} == {("adaptive", 8)}
    here.wall.desired = Desired()
    here.sync()
    assert {loop.policy for loop in here.loops} == {("adaptive", 64)}


def test_a_drain_survives_every_heartbeat_and_ends_when_told(fleet: Callable[..., Fleet]) -> None:
    here = fleet()
    here.sync()
    here.steerings[0].drain()
    here.sync()
    assert all(loop.held for loop in here.loops)
    here.steerings[0].resume()
    assert not any(loop.held for loop in here.loops)


def test_a_reload_goes_through_the_fleet_one_executor_at_a_time(fleet: Callable[..., Fleet]) -> None:
    here = fleet(3)
    here.sync()
    here.wall.desired = Desired(reload=Reload(1, {"source": "pkg:New"}))
    here.sync()
    here.sync()
    here.settle()
    assert [each.sources for each in here.executors] == [["pkg:New"]] * 6
    assert max(here.most_down) == 1
    assert {loop.model.source for loop in here.loops} == {"pkg:New"}
    assert not any(loop.held for loop in here.loops)


def test_a_reload_without_changes_reads_the_file_again(fleet: Callable[..., Fleet]) -> None:
    here = fleet()
    here.sync()
    here.file = {"m": ModelSettings(name="m", source="pkg:Edited", version="2")}
    here.wall.desired = Desired(reload=Reload(1))
    here.sync()
    here.settle()
    assert here.steerings[0].describe()["m"]["version"] == "2"


def test_what_does_not_load_is_refused_and_all_that_ran_goes_on(fleet: Callable[..., Fleet]) -> None:
    here = fleet(2, ("pkg:Broken",))
    here.sync()
    here.wall.desired = Desired(reload=Reload(1, {"source": "pkg:Broken"}))
    here.sync()
    here.settle()
    assert here.wall.refusals == [(1, "these weights are not there")]
    assert {each.state for each in here.executors} == {ExecutorState.READY}
    assert sorted(each.sources for each in here.executors) == [[], [], [], ["pkg:Broken", "pkg:Old"]]
    assert not any(loop.held for loop in here.loops)


def test_a_worker_that_starts_later_starts_from_what_was_reloaded(fleet: Callable[..., Fleet]) -> None:
    here = fleet()
    here.wall.desired = Desired(tuned={"policy": "idle"}, reload=Reload(4, {"source": "pkg:New"}))
    here.sync()
    assert [each.sources for each in here.executors] == [["pkg:New"]] * 2
    assert {loop.policy for loop in here.loops} == {("idle", 64)}
    here.sync()
    assert here.reloaded()


def test_restarting_ones_own_executors_concerns_nobody_else(fleet: Callable[..., Fleet]) -> None:
    here = fleet(2)
    here.sync()
    here.steerings[0].restart()
    here.settle()
    assert [len(each.sources) for each in here.executors] == [1, 1, 0, 0]


def test_a_restart_during_a_reload_follows_it(fleet: Callable[..., Fleet]) -> None:
    here = fleet(1)
    here.sync()
    here.may_load.clear()
    here.steerings[0].restart()
    # Both are told that a restart begins; one is enough for them.
    here.steerings[0].restart()
    here.steerings[0].restart()
    here.may_load.set()
    here.settle()
    assert [len(each.sources) for each in here.executors] == [2, 2]
    assert not any(loop.held for loop in here.loops)

"""The models that are loaded where not all have room: what holds for every load, and single decisions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.policy.residency import (
    LEAST_RESIDENCE_S,
    Demand,
    Plan,
    Stage,
    Tenant,
    backoff_s,
    learnt_load_s,
    plan,
    ready_in_s,
)

TWO = {"models": 2.0}
ONE_PLACE = {"models": 1.0}
PATIENCE_S = 10_000.0


class World:
    """Loads, serves and unloads in virtual time, as a plan says, and asserts what every plan must keep to."""

    def __init__(
        self, needs: Sequence[Mapping[str, float]], loads_s: Sequence[float], room: Mapping[str, float], batch_s: float
    ) -> None:
        self.now = 0.0
        self.room, self.loads_s, self.batch_s = room, loads_s, batch_s
        self.tenants = {str(n): Tenant(str(n), each) for n, each in enumerate(needs)}
        self.loads: dict[str, list[float]] = {name: [] for name in self.tenants}
        self.due: dict[str, float] = {}
        self.batch_ends: dict[str, float] = {}
        self.longest_s = 0.0
        self.deadline_s = math.inf

    def run(self, arrivals: Sequence[tuple[float, str]]) -> None:
        ahead = sorted(arrivals)
        while self.now < PATIENCE_S:
            look_at = self.act()
            self.now = min(
                [look_at, *self.due.values(), *self.batch_ends.values(), *(at for at, _ in ahead[:1])], default=math.inf
            )
            while ahead and ahead[0][0] <= self.now:
                name = ahead.pop(0)[1]
                each = self.tenants[name]
                due_at = min(self.now + self.deadline_s, each.due_at)
                self.change(name, oldest_at=min(self.now, each.oldest_at), due_at=due_at)
            self.pass_time()
        assert not ahead

    def act(self) -> float:
        while True:
            steps = plan(list(self.tenants.values()), self.room, self.now)
            for name in steps.unload:
                assert (self.tenants[name].stage, self.tenants[name].busy) == (Stage.DRAINING, False)
                self.enter(name, Stage.UNLOADED)
            for name in steps.drain:
                each = self.tenants[name]
                assert each.stage is Stage.RESIDENT
                hurry = any(other.waits and other.is_urgent(self.now) for other in self.tenants.values())
                least_s = 0.0 if hurry and not (each.busy or each.waits) else each.load_s
                assert self.now >= each.since + max(least_s, LEAST_RESIDENCE_S)
                self.enter(name, Stage.DRAINING)
            for name in steps.load:
                assert (self.tenants[name].stage, self.tenants[name].waits) == (Stage.UNLOADED, True)
                self.enter(name, Stage.LOADING)
                self.loads[name].append(self.now)
                self.due[name] = self.now + self.loads_s[int(name)]
            for limit, most in self.room.items():
                loaded = (each for each in self.tenants.values() if each.stage is not Stage.UNLOADED)
                assert sum(each.needs.get(limit, 0.0) for each in loaded) <= most + 1e-6
            if steps == Plan(look_at=steps.look_at):
                assert steps.look_at > self.now
                return steps.look_at

    def pass_time(self) -> None:
        for name, at in list(self.due.items()):
            if at <= self.now:
                del self.due[name]
                self.change(name, load_s=self.loads_s[int(name)])
                self.enter(name, Stage.RESIDENT)
        for name, at in list(self.batch_ends.items()):
            if at <= self.now:
                del self.batch_ends[name]
                self.change(name, busy=False, used_at=self.now)
        for name, each in self.tenants.items():
            if each.stage is Stage.RESIDENT and each.waits and not each.busy:
                self.longest_s = max(self.longest_s, self.now - each.oldest_at)
                self.change(name, busy=True, oldest_at=math.inf, due_at=math.inf, demand=each.demand + 1)
                self.batch_ends[name] = self.now + self.batch_s

    def enter(self, name: str, stage: Stage) -> None:
        self.change(name, stage=stage, since=self.now)

    def change(self, name: str, **values: object) -> None:
        self.tenants[name] = replace(self.tenants[name], **values)  # type: ignore[arg-type]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, list[tuple[float, str]]]:
    count = draw(st.integers(1, 6))
    shares = st.floats(0.05, 1.0)
    places = draw(st.integers(1, 3))
    needs = [
        draw(
            st.one_of(
                st.just({"models": 1.0}),
                st.builds(lambda share: {"gpu0": share, "models": 1.0}, shares),
                st.builds(lambda share, other: {"gpu0": share, "gpu1": other}, shares, shares),
            )
        )
        for _ in range(count)
    ]
    loads = draw(st.lists(st.floats(0.01, 20.0), min_size=count, max_size=count))
    arrivals = draw(
        st.lists(st.tuples(st.floats(0.0, 60.0), st.integers(0, count - 1).map(str)), min_size=1, max_size=40)
    )
    room = {"models": float(places), "gpu0": 1.0, "gpu1": 1.0}
    world = World(needs, loads, room, draw(st.floats(0.001, 5.0)))
    world.deadline_s = draw(st.one_of(st.just(math.inf), st.floats(0.1, 60.0)))
    return world, arrivals


@given(worlds())
def test_every_request_finds_its_model_in_the_end_within_the_limits_and_the_minimum_residence(
    drawn: tuple[World, list[tuple[float, str]]],
) -> None:
    world, arrivals = drawn
    world.run(arrivals)
    assert all(not each.waits for each in world.tenants.values())
    for name, times in world.loads.items():
        least_s = world.loads_s[int(name)] if world.deadline_s == math.inf else 0.0
        stays_s = world.loads_s[int(name)] + max(least_s, LEAST_RESIDENCE_S)
        assert all(after - before >= stays_s - 1e-6 for before, after in itertools.pairwise(times))


@given(st.integers(1, 4), st.integers(1, 2), st.floats(0.1, 3.0))
@settings(max_examples=20)
def test_nobody_waits_for_more_than_a_turn_of_each_other_model(others: int, places: int, load_s: float) -> None:
    """All are asked all the time: each turn is a load, a minimum residence, and the batches that must end."""
    world = World([{"models": 1.0}] * (others + 1), [load_s] * (others + 1), {"models": float(places)}, 0.05)
    arrivals = [(n / 4, str(model)) for n in range(80) for model in range(others + 1)]
    world.run(arrivals)
    turn_s = load_s + max(load_s, LEAST_RESIDENCE_S) + 0.3
    assert world.longest_s <= turn_s * (others + 1)


def test_what_has_room_is_loaded_at_once_and_what_nobody_asks_for_stays_where_it_is() -> None:
    asked, unasked = waiting("a", 1.0), Tenant("b", {"models": 1.0})
    assert plan([asked, unasked], TWO, 1.0) == Plan(load=("a",))
    assert plan([resident("a"), resident("b"), unasked], TWO, 1e6) == Plan()


def test_who_waits_longest_is_next_and_nobody_passes_him_where_he_needs_room() -> None:
    large = Tenant("large", {"gpu0": 0.9}, oldest_at=1.0)
    small = Tenant("small", {"gpu0": 0.3}, oldest_at=2.0)
    elsewhere = Tenant("elsewhere", {"gpu1": 0.3}, oldest_at=3.0)
    held = Tenant("held", {"gpu0": 0.4}, Stage.RESIDENT, since=9.0, load_s=5.0)
    room = {"gpu0": 1.0, "gpu1": 1.0}
    assert plan([held, small, large, elsewhere], room, 10.0) == Plan(load=("elsewhere",), look_at=14.0)
    assert plan([held, small, large, elsewhere], room, 14.0) == Plan(load=("elsewhere",), drain=("held",))


def test_the_model_that_is_no_longer_asked_leaves_first_and_of_those_the_least_recently_used() -> None:
    asked, older, newer = (resident(name, used_at=at) for name, at in (("asked", 1.0), ("older", 2.0), ("newer", 3.0)))
    asked = replace(asked, demand=5.0, used_at=99.9)
    models = [newer, asked, older, waiting("d", 100.0)]
    assert plan(models, {"models": 3.0}, 100.0).drain == ("older",)


def test_among_models_that_are_asked_the_one_with_the_least_demand_leaves_however_recently_it_was_used() -> None:
    much = replace(resident("much", used_at=99.8), demand=10.0)
    little = replace(resident("little", used_at=99.9), demand=2.0)
    assert plan([much, little, waiting("d", 100.0)], TWO, 100.0).drain == ("little",)
    # Within a factor of two recency decides.
    alike = replace(little, demand=9.0)
    assert plan([much, alike, waiting("d", 100.0)], TWO, 100.0).drain == ("much",)


def test_it_is_better_to_wait_for_the_end_of_a_minimum_residence_than_to_send_away_what_is_asked_most() -> None:
    much = replace(resident("much", used_at=99.9), demand=10.0)
    fresh = replace(resident("fresh"), since=99.0, load_s=3.0, demand=2.0)
    models = [much, fresh, waiting("d", 100.0)]
    assert plan(models, TWO, 100.0) == Plan(look_at=102.0)
    assert plan(models, TWO, 102.0).drain == ("fresh",)


def test_a_deadline_that_is_near_is_no_time_to_wait_for_the_best_one_to_leave() -> None:
    much = replace(resident("much", used_at=99.9), demand=10.0)
    fresh = replace(resident("fresh"), since=99.0, load_s=3.0, demand=2.0)
    for due_at, expected in ((104.0, Plan(look_at=102.0)), (103.0, Plan(drain=("much",)))):
        asks = replace(waiting("d", 99.5), load_s=1.0, due_at=due_at)
        assert plan([much, replace(fresh, busy=True), asks], TWO, 100.0) == expected
    # It has answered all that waited.
    assert plan([much, fresh, asks], TWO, 100.0) == Plan(drain=("fresh",))


def test_a_busy_model_drains_before_it_leaves() -> None:
    draining = replace(resident("a"), stage=Stage.DRAINING, busy=True)
    models = [draining, waiting("b", 1.0)]
    assert plan(models, ONE_PLACE, 5.0) == Plan()
    assert plan([replace(draining, busy=False), models[1]], ONE_PLACE, 5.0) == Plan(unload=("a",))


def test_what_has_had_its_turn_waits_behind_those_who_asked_before_it_left() -> None:
    """Its oldest request waits longest, since it was asked for more than it could do."""
    left = replace(waiting("left", 1.0), since=20.0)
    assert plan([left, waiting("asks", 15.0)], ONE_PLACE, 21.0).load == ("asks",)


def test_a_load_that_failed_is_not_tried_again_before_its_time_and_keeps_no_room_for_itself() -> None:
    failed = replace(waiting("failed", 1.0), not_before=30.0)
    assert plan([failed, waiting("b", 2.0)], ONE_PLACE, 5.0) == Plan(load=("b",), look_at=30.0)
    assert [backoff_s(n) for n in (1, 2, 3, 7, 5000)] == [1.0, 2.0, 4.0, 60.0, 60.0]


def test_a_model_that_no_room_would_suffice_for_does_not_keep_the_others_waiting() -> None:
    assert plan([Tenant("huge", {"models": 3.0}, oldest_at=0.0), waiting("b", 1.0)], TWO, 2.0) == Plan(load=("b",))


def test_a_dismissed_model_leaves_though_nobody_needs_its_room() -> None:
    assert plan([replace(resident("a"), dismissed=True)], TWO, 1.0) == Plan(drain=("a",))


@pytest.mark.parametrize(
    ("tenants", "expected_s"),
    [
        ([resident_now := Tenant("x", {"models": 1.0}, Stage.RESIDENT, load_s=4.0)], 0.0),
        ([replace(resident_now, stage=Stage.LOADING, since=99.0)], 3.0),
        ([replace(resident_now, stage=Stage.UNLOADED)], 4.0),
        # Not known yet.
        ([Tenant("x", {"models": 1.0})], None),
        # The other one stays for a second more.
        (
            [
                Tenant("x", {"models": 1.0}, load_s=4.0),
                Tenant("y", {"models": 1.0}, Stage.RESIDENT, since=95.0, load_s=6.0),
            ],
            5.0,
        ),
        # Another has waited longer: its load, its residence, then ours.
        (
            [
                Tenant("x", {"models": 1.0}, load_s=4.0),
                Tenant("y", {"models": 1.0}, Stage.RESIDENT, since=0.0, load_s=6.0),
                Tenant("z", {"models": 1.0}, oldest_at=50.0, load_s=2.0),
            ],
            8.0,
        ),
    ],
)
def test_the_time_until_a_model_is_ready_follows_from_the_plans_to_come(
    tenants: list[Tenant], expected_s: float | None
) -> None:
    assert ready_in_s(tenants, ONE_PLACE, "x", 100.0) == (
        expected_s if expected_s is None else pytest.approx(expected_s)
    )


def test_demand_fades_and_load_times_are_averaged() -> None:
    demand = Demand().seen(300, 0.0)
    assert demand.rate == pytest.approx(10.0)
    assert demand.lately(30.0) == pytest.approx(10.0 / math.e)
    assert learnt_load_s(0.0, 8.0) == 8.0
    assert learnt_load_s(8.0, 4.0) == 7.0


def resident(name: str, used_at: float = 0.0) -> Tenant:
    return Tenant(name, {"models": 1.0}, Stage.RESIDENT, since=0.0, used_at=used_at, load_s=1.0)


def waiting(name: str, since: float) -> Tenant:
    return Tenant(name, {"models": 1.0}, oldest_at=since)

"""Executors that take far longer than they did: the rule, under noise and other mixes of batches, and its watch."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Failed, Ok, Outcome, Rejected, Request
from config.process.devices import Placement
from config.settings import ModelSettings
from config.tiers import Tier
from workers.health.slowdown import ENTER, LEARNING, LEAVE, MAX_KINDS, RECENT, WINDOW, Kind, Slowdown
from workers.health.speed import EVERY_S, SpeedWatch
from workers.health.verdict import Health
from workers.health.watch import State

SIZES = (1, 2, 3, 5, 8, 13, 21, 34, 48, 64)
seeds = st.integers(0, 2**32).map(random.Random)


def device(size: int) -> float:
    """A device of 10 ms and 1 ms for each input."""
    return 0.010 + 0.001 * size


def kind(size: int) -> Kind:
    return Kind.of(size, 40, 40 * size, 900 * size)


def ran(
    known: Slowdown,
    windows: int,
    factor: float = 1.0,
    *,
    chance: random.Random | None = None,
    size: Callable[[], int] = lambda: 8,
    now: float = 0.0,
    every_s: float = EVERY_S,
) -> Slowdown:
    """The state after as many batches as are in `windows`.

    With `chance`, a third of them is up to fifty times slower, and the others up to 1.3 times.
    """
    for step in range(windows * WINDOW):
        count, delay = size(), 1.0
        if chance is not None:
            delay = chance.uniform(1, 50) if chance.random() < 0.3 else chance.uniform(1, 1.3)
        known = known.observe(kind(count), count, device(count) * factor * delay, now + step * every_s)
    return known


def learnt() -> Slowdown:
    return ran(Slowdown(), LEARNING)


@given(seeds)
def test_a_noisy_host_is_no_slow_device(chance: random.Random) -> None:
    assert ran(Slowdown(), LEARNING + 2 * RECENT, chance=chance).slow is None


@given(seeds, st.permutations(SIZES), st.permutations(SIZES))
def test_another_mix_of_sizes_is_no_slow_device(chance: random.Random, first: list[int], second: list[int]) -> None:
    known = ran(Slowdown(), 20, size=lambda: chance.choice(first[:4]))
    assert ran(known, 40, size=lambda: chance.choice(second[:4])).slow is None


@given(st.integers(1, 400), st.integers(1, 400))
def test_longer_inputs_are_another_kind_unless_they_take_about_as_long(before: int, after: int) -> None:
    kinds = [Kind.of(8, length, 8 * length, 100) for length in (before, after)]
    assert kinds[0] != kinds[1] or max(before, after) < 2**0.5 * min(before, after) + 1


@given(seeds, st.floats(1.2 * ENTER, 100.0))
def test_a_device_that_becomes_far_slower_is_found_under_noise_and_let_go_again(
    chance: random.Random, factor: float
) -> None:
    known = ran(Slowdown(), LEARNING + RECENT, chance=chance)
    known = ran(known, RECENT, factor, chance=chance)
    assert known.slow is not None
    assert known.slow.factor == pytest.approx(factor, rel=0.35)
    assert ran(known, RECENT, chance=chance).slow is None


@given(st.lists(st.sampled_from(SIZES), min_size=1, max_size=4, unique=True))
def test_it_is_found_whatever_the_sizes_are(sizes: list[int]) -> None:
    chance = random.Random(1)
    known = ran(Slowdown(), 8 * len(sizes), size=lambda: chance.choice(sizes))
    known = ran(known, (RECENT + 2) * len(sizes), 3.0, size=lambda: chance.choice(sizes))
    assert known.slow is not None


def test_between_the_two_factors_it_stays_as_it_is() -> None:
    between = (ENTER + LEAVE) / 2
    assert ran(learnt(), 2 * RECENT, between).slow is None
    slow = ran(learnt(), RECENT, ENTER * 1.1)
    assert slow.slow is not None
    assert ran(slow, 2 * RECENT, between).slow is not None
    assert ran(slow, 2 * RECENT, LEAVE * 0.9).slow is None


def test_a_few_slow_windows_are_not_enough() -> None:
    known = ran(learnt(), RECENT)
    assert ran(known, RECENT // 2 - 1, 10.0).slow is None
    assert ran(known, RECENT // 2 + 1, 10.0).slow is not None


def test_a_device_that_becomes_slower_over_minutes_is_found() -> None:
    known = learnt()
    for minute in range(20):
        known = ran(known, 15, 1 + 0.15 * minute, now=60.0 * (minute + 1))
    assert known.slow is not None


def test_what_lasts_for_hours_becomes_usual_and_a_night_without_requests_forgets_nothing() -> None:
    known = ran(learnt(), RECENT, 3.0, now=1e5)
    assert known.slow is not None
    for hour in range(9):
        known = ran(known, 60, 3.0, now=2e5 + 3600.0 * hour, every_s=60 / WINDOW)
    assert known.slow is None


def test_a_difference_of_less_than_the_hosts_own_is_none() -> None:
    known = Slowdown()
    for factor in (1.0, 5.0):
        for step in range((LEARNING + 2 * RECENT) * WINDOW):
            known = known.observe(kind(1), 1, 0.0002 * factor, step * EVERY_S)
    assert known.slow is None


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**9)), max_size=40))
def test_what_is_kept_is_bounded(batches: list[tuple[int, int]]) -> None:
    known = Slowdown()
    for now, (size, length) in enumerate(batches):
        known = known.observe(Kind.of(size, length, length, length), size, 0.01, float(now))
    known = ran(known, RECENT + LEARNING + 2)
    assert len(known.kinds) <= MAX_KINDS
    assert all(len(each.open) < WINDOW for each in known.kinds.values())
    assert len(known.recent) == RECENT


def test_the_kinds_are_bounded() -> None:
    known = Slowdown()
    for number in range(2 * MAX_KINDS):
        known = known.observe(Kind(number, 0, 0, 0), 1, 0.01, 0.0)
    assert len(known.kinds) == MAX_KINDS


def test_a_kind_that_is_seen_all_the_time_is_not_forgotten_for_rare_ones() -> None:
    known = learnt()
    for rare in range(2 * MAX_KINDS):
        known = known.observe(Kind(100 + rare, 0, 0, 0), 1, 0.01, 0.0)
        known = known.observe(kind(8), 8, device(8), 0.0)
    assert ran(known, RECENT, 3.0).slow is not None


def test_another_process_is_compared_with_the_same_past() -> None:
    again = ran(learnt(), RECENT, 3.0).restarted()
    assert again.slow is None
    assert ran(again, RECENT, 3.0).slow is not None


def test_the_finding_says_by_how_much() -> None:
    slow = ran(learnt(), RECENT, 3.0).slow
    assert str(slow) == "takes 3.0 times as long as before (a batch of 8: 54 ms, 18 ms before)"


class Executor:
    def __init__(self, name: str, device: str) -> None:
        self.name = name
        self.placement = Placement("cpu" if device == "cpu" else "cuda", device)
        self.loaded: ModelSettings | None = ModelSettings(name="m", source="a:B")
        self.restarts = 0
        self.overlaps = False


class Worker:
    """Executors that compute batches of eight, 20 ms each unless told otherwise."""

    def __init__(self, *devices: str, source: str = "a:B") -> None:
        self.now = 0.0
        self.executors = [Executor(f"m/{index}", device) for index, device in enumerate(devices)]
        model = ModelSettings(name="m", source=source)
        self.watch = SpeedWatch([(model, each) for each in self.executors], lambda: self.now)

    def run(self, windows: int, factor: float = 1.0, outcome: Outcome | None = None, **batch: object) -> Health:
        requests = [Request(f"{n}", Tier.FREE, 0, b'"a text"', b"{}") for n in range(8)]
        settled = [(each, outcome or Ok(b"[0.5]")) for each in requests]
        about = {"compute_s": 0.020 * factor, "executor": "m/0", **batch}
        info = BatchInfo("b", "m", "1", 8, Reason.FULL, 0, **about)  # type: ignore[arg-type]
        for _ in range(windows * WINDOW):
            self.now += EVERY_S
            self.watch.finished(settled, info)
        return self.health

    @property
    def health(self) -> Health:
        return self.watch.state(State()).health


def test_an_executor_on_a_device_that_slows_down_degrades_its_worker_until_it_does_not() -> None:
    worker = Worker("GPU-a", "GPU-b")
    assert worker.run(LEARNING + RECENT) is Health.HEALTHY
    assert worker.run(RECENT, 4.0) is Health.DEGRADED
    shown = worker.watch.state(State((), Health.HEALTHY, ("another reason",)))
    assert shown.reasons[0] == "another reason"
    assert shown.reasons[1].startswith("m/0 takes 4.0 times as long as before")
    assert worker.watch.state(State((), Health.OFFLINE, ("it is gone",))).health is Health.OFFLINE
    assert worker.run(RECENT) is Health.HEALTHY


@pytest.mark.parametrize(
    "worker",
    [Worker("cpu"), Worker("GPU-a", "GPU-a"), Worker("GPU-a", source="https://example.org")],
    ids=["on the CPU", "that shares its device", "behind a URL"],
)
def test_an_executor_is_not_watched(worker: Worker) -> None:
    worker.run(LEARNING + RECENT)
    assert worker.run(2 * RECENT, 4.0) is Health.HEALTHY


@pytest.mark.parametrize(
    "batch",
    [
        {"outcome": Failed("it broke")},
        {"outcome": Rejected("no")},
        {"passes": 3},
        {"collapsed": 2},
        {"size": 9},
        {"overlaps": True, "wait_s": 0.01},
        {"overlaps": True, "followed": True},
        {"overlaps": True, "wait_s": 0.01, "followed": True},
    ],
    ids=[
        *("that failed", "that was refused", "in parts", "with equal inputs", "of which some are tried again"),
        *("behind another one", "before another one", "of another kind: between two others"),
    ],
)
def test_a_batch_says_nothing_about_the_device(batch: dict[str, object]) -> None:
    worker = Worker("GPU-a")
    worker.executors[0].overlaps = bool(batch.pop("overlaps", False))
    worker.run(LEARNING + RECENT)
    settled = batch.pop("outcome", Ok(b"[0.5]"))
    requests = [Request(f"{n}", Tier.FREE, 0, b'"a text"', b"{}") for n in range(8)]
    about = {"size": 8, **batch}
    info = BatchInfo("b", "m", "1", reason=Reason.FULL, claimed_ms=0, compute_s=0.2, executor="m/0", **about)  # type: ignore[arg-type]
    for _ in range(2 * RECENT * WINDOW):
        worker.now += EVERY_S
        worker.watch.finished([(each, settled) for each in requests], info)  # type: ignore[misc]
    assert worker.health is Health.HEALTHY


def test_where_stages_overlap_batches_between_two_others_are_compared_with_each_other() -> None:
    worker = Worker("GPU-a")
    worker.executors[0].overlaps = True
    between = {"wait_s": 0.01, "followed": True}
    worker.run(LEARNING + RECENT)
    assert worker.run(LEARNING + RECENT, 2.5, **between) is Health.HEALTHY
    assert worker.run(RECENT, 8.0, **between) is Health.DEGRADED


def test_where_none_overlap_neighbours_make_no_difference() -> None:
    worker = Worker("GPU-a")
    worker.run(LEARNING + RECENT)
    assert worker.run(RECENT, 4.0, wait_s=0.01, followed=True) is Health.DEGRADED


def test_short_batches_are_looked_at_a_few_times_a_second() -> None:
    worker = Worker("GPU-a")
    worker.run(LEARNING + RECENT)
    start = worker.now
    for _ in range(RECENT * WINDOW):
        worker.run(1, 4.0)
        worker.now = start
    assert worker.health is Health.HEALTHY


def test_a_reload_begins_anew_and_a_restart_does_not() -> None:
    worker = Worker("GPU-a")
    (executor,) = worker.executors
    worker.run(LEARNING + RECENT)
    assert worker.run(RECENT, 4.0) is Health.DEGRADED
    executor.restarts = 1
    assert worker.run(1, 4.0) is Health.HEALTHY
    assert worker.run(RECENT, 4.0) is Health.DEGRADED
    executor.loaded = ModelSettings(name="m", source="a:B")
    assert worker.run(LEARNING + 2 * RECENT, 4.0) is Health.HEALTHY


def test_the_last_batch_of_a_process_that_has_ended_forgets_nothing() -> None:
    worker = Worker("GPU-a")
    (executor,) = worker.executors
    worker.run(LEARNING + RECENT)
    loaded, executor.loaded = executor.loaded, None
    worker.run(1)
    executor.loaded = loaded
    assert worker.run(RECENT, 4.0) is Health.DEGRADED


def test_an_operator_who_has_seen_it_makes_it_usual() -> None:
    worker = Worker("GPU-a")
    worker.run(LEARNING + RECENT)
    worker.run(RECENT, 4.0)
    worker.watch.forget("another")
    assert worker.health is Health.DEGRADED
    worker.watch.forget("m")
    assert worker.health is Health.HEALTHY
    assert worker.run(LEARNING + 2 * RECENT, 4.0) is Health.HEALTHY


def test_a_worker_of_cpus_alone_does_not_watch() -> None:
    assert not Worker("cpu", "cpu").watch.has_devices
    assert Worker("cpu", "GPU-a").watch.has_devices

"""The one wait that the idle loops of a worker share."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from batching.claim.idle_watch import IdleWatch, Seat
from config.tiers import Tier
from tests.fakes.claim_rig import MODEL, Make
from tests.fakes.messages import our_message
from tests.fakes.store import MemoryBatchStore

LONG_S = 30.0


class World:
    """A watch over a store in memory, and loops that are nothing but a thread at a seat."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.broken = threading.Event()
        self.store = MemoryBatchStore(before=self._before)
        self.watch = IdleWatch(self.store)
        self.seats: list[Seat] = []
        self.threads: list[threading.Thread] = []
        self.left: list[str] = []
        self._changed = threading.Condition()
        self.over = threading.Event()

    def _before(self, call: str) -> None:
        with self._changed:
            self.calls[call] += 1
            self._changed.notify_all()
        if self.broken.is_set():
            raise RedisConnectionError("away")

    def idle(self, model: str, paused: frozenset[int] = frozenset()) -> Seat:
        """A loop that is held, until it is woken; then its model's name is in `left`."""
        seat = self.watch.seat(model, threading.Condition())

        def loop() -> None:
            while not seat.rest(paused, self.over.is_set):
                if self.over.wait(0.001):
                    return
            with self._changed:
                self.left.append(model)
                self._changed.notify_all()

        thread = threading.Thread(target=loop, daemon=True)
        self.seats.append(seat)
        self.threads.append(thread)
        thread.start()
        self.until(lambda: seat.resting)
        return seat

    def until(self, condition: Callable[[], object]) -> None:
        with self._changed:
            for _ in range(int(LONG_S / 0.02)):
                if self._changed.wait_for(condition, 0.02):
                    return
        pytest.fail("it never came true")

    def close(self) -> None:
        self.over.set()
        self.watch.stop()
        for seat in self.seats:
            seat.let_go()
        for thread in self.threads:
            thread.join(LONG_S)
            assert not thread.is_alive()

    def put_silently(self, model: str, tier: Tier = Tier.PAID) -> None:
        """As a plain Celery client does: nobody rings."""
        with self.store.changed:
            self.store.put(model, tier, our_message("t", b'"x"'))
            self.store.silence(model)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("batching.claim.idle_watch.COLD_AFTER_S", 0.0)
    monkeypatch.setattr("batching.claim.idle_watch.LOOK_EVERY_S", 0.01)
    made = World()
    made.watch.start()
    yield made
    made.close()


def test_thirty_idle_models_ask_redis_as_often_as_one(world: World) -> None:
    for number in range(30):
        world.idle(f"m{number}")
    with world._changed:
        world.calls.clear()
    world.until(lambda: world.calls["peek"] >= 10)
    with world._changed:
        # One after the other, and the first of either may be the one that was counted before.
        assert abs(world.calls["wait_for_bells"] - world.calls["peek"]) <= 1
        assert set(world.calls) == {"wait_for_bells", "peek"}


def test_a_ring_wakes_one_loop_of_its_model_alone(world: World) -> None:
    for model in ("a", "b", "b", "c"):
        world.idle(model)
    world.store.ring("b")
    world.until(lambda: world.left)
    before = world.calls["peek"]
    world.until(lambda: world.calls["peek"] > before + 1)
    assert world.left == ["b"]
    world.store.ring("b")
    world.until(lambda: len(world.left) == 2)
    assert world.left == ["b", "b"]


def test_what_nobody_rang_for_is_seen_and_wakes_every_loop_of_its_model(world: World) -> None:
    for model in ("a", "b", "b"):
        world.idle(model)
    world.put_silently("b")
    world.until(lambda: len(world.left) == 2)
    assert world.left == ["b", "b"]


def test_what_is_announced_is_looked_at_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.idle("a")
    announced = _announce(world, monkeypatch)
    world.put_silently("a")
    announced()
    world.until(lambda: world.left)


def test_announcements_without_work_are_not_followed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.idle("a", paused=frozenset({Tier.PAID.rank}))
    monkeypatch.setattr("batching.claim.idle_watch.LOOK_EVERY_S", 0.2)
    announced = _announce(world, monkeypatch)
    before = world.calls["peek"]
    began = time.monotonic()
    while time.monotonic() < began + 0.5:
        announced()
        time.sleep(0.001)
    assert world.calls["peek"] - before <= 2 * (time.monotonic() - began) / 0.2 + 2


def _announce(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the store be told of changes; the result tells it of one."""
    changed = threading.Event()

    def wait_for_changes(models: Sequence[str], timeout_s: float) -> str | None:
        changed.wait(timeout_s)
        changed.clear()
        return None

    monkeypatch.setattr("batching.claim.idle_watch.TOLD_LOOK_EVERY_S", LONG_S)
    monkeypatch.setattr(world.store, "wait_for_changes", wait_for_changes)
    monkeypatch.setattr(type(world.store), "is_told", True)
    return changed.set


def test_what_waits_in_a_paused_tier_wakes_nobody(world: World) -> None:
    world.idle("a", paused=frozenset({Tier.PAID.rank}))
    world.put_silently("a", Tier.PAID)
    before = world.calls["peek"]
    world.until(lambda: world.calls["peek"] > before + 3)
    assert world.left == []
    world.put_silently("a", Tier.FREE)
    world.until(lambda: world.left)


def test_a_retry_whose_pause_is_over_wakes_its_loop(world: World) -> None:
    world.idle("a")
    world.store.delay("a", Tier.PAID, our_message("t", b'"x"'))
    world.until(lambda: world.left)


def test_a_token_that_comes_while_a_loop_still_waits_by_itself_is_left_to_it(world: World) -> None:
    seat = world.watch.seat("a", threading.Condition())
    assert not seat.rest(frozenset(), lambda: False)
    world.until(lambda: world.watch.holds("a"))
    world.store.ring("a")
    world.until(lambda: not world.watch.holds("a"))
    assert world.store.wait_for_bells(["a"], LONG_S) == "a"


def test_the_watch_outlives_redis_and_keeps_its_loops(world: World) -> None:
    world.idle("a")
    world.broken.set()
    before = sum(world.calls.values())
    world.until(lambda: sum(world.calls.values()) > before + 2)
    assert world.left == []
    world.broken.clear()
    world.store.ring("a")
    world.until(lambda: world.left)


@pytest.mark.usefixtures("world")
def test_a_claim_loop_that_is_held_serves_what_comes(make: Make) -> None:
    rig = make(watched=True)
    rig.start()
    rig.until(lambda: rig.watch.holds(MODEL))
    rig.put("a")
    rig.settled("a")
    rig.until(lambda: rig.watch.holds(MODEL))
    rig.put("b", "c")
    rig.settled("b", "c")


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("word", ["pause", "hold", "stop"])
def test_a_word_to_a_claim_loop_that_is_held_is_followed_at_once(make: Make, word: str) -> None:
    rig = make(watched=True)
    rig.start()
    rig.until(lambda: rig.watch.holds(MODEL))
    if word == "pause":
        rig.loop.gate.pause(frozenset({Tier.PAID.rank}))
        rig.until(lambda: rig.watch.holds(MODEL))
        rig.put("a")
        rig.put("b", tier=Tier.FREE)
        rig.settled("b")
        assert rig.waiting == 1
    elif word == "hold":
        rig.loop.gate.hold()
        assert rig.loop.wait_empty(LONG_S)
    else:
        rig.loop.stop(LONG_S)
        assert not any(thread.is_alive() for thread in rig.loop._threads)

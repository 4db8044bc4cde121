"""Troubles while books are kept: the primary is lost in each way, it refuses, and workers hang.

Each trouble returns when it is over, and whoever was lost is back. `Troubled` causes one after the other meanwhile.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil
from redis.exceptions import RedisError

from tests.chaos.lone import LEASE_TTL_S, LoneWorkers
from tests.sentinels import Watched
from tests.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Scene:
    """The servers and workers that a trouble may affect."""

    watched: Watched
    victims: LoneWorkers
    rng: random.Random


Trouble = Callable[[Scene], None]


def kill_primary(scene: Scene) -> None:
    _replaced(scene, scene.watched.kill, scene.watched.run)


def hang_primary(scene: Scene) -> None:
    def send(number: signal.Signals) -> Callable[[int], object]:
        return lambda primary: scene.watched.signal(primary, number)

    _replaced(scene, send(signal.SIGSTOP), send(signal.SIGCONT))


def cut_primary_off(scene: Scene) -> None:
    """Cut the primary off from its replica and its sentinels; workers and callers reach it as before."""
    _replaced(scene, scene.watched.cut_off, scene.watched.join)


def replace_primary(scene: Scene) -> None:
    _replaced(scene, lambda _: scene.watched.fail_over(), lambda _: None)


def kill_connections(scene: Scene) -> None:
    with scene.watched.client(scene.watched.primary) as redis:
        for kind in ("normal", "pubsub"):
            redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def fill_memory(scene: Scene) -> None:
    """Leave no memory for writes, for longer than a worker's leases last."""
    with scene.watched.client(scene.watched.primary) as redis:
        redis.config_set("maxmemory", 1)
        time.sleep(1.5 * LEASE_TTL_S)
        redis.config_set("maxmemory", 0)


def stop_worker(scene: Scene) -> None:
    """Stop a worker for longer than its leases last; what it has is taken from it meanwhile."""
    if ready := _ready(scene):
        # One that is killed meanwhile is not signalled.
        worker = scene.rng.choice(ready)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(2.0 * LEASE_TTL_S)
        worker.send_signal(signal.SIGCONT)


def kill_executor(scene: Scene) -> None:
    for worker in _ready(scene)[:1]:
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(worker.pid).children():
                each.kill()


ALL: tuple[Trouble, ...] = (
    kill_primary,
    hang_primary,
    cut_primary_off,
    replace_primary,
    kill_connections,
    fill_memory,
    stop_worker,
    kill_executor,
)


def _replaced(scene: Scene, lose: Callable[[int], object], bring_back: Callable[[int], object]) -> None:
    """Lose the primary until another server has its place, and bring it back."""
    primary = scene.watched.primary

    def is_replaced() -> bool:
        with suppress(RedisError):
            return scene.watched.primary != primary
        return False

    lose(primary)
    try:
        wait_until(is_replaced, what="another server is the primary")
    finally:
        bring_back(primary)


def _ready(scene: Scene) -> list[subprocess.Popen[bytes]]:
    with suppress(RedisError):
        return scene.victims.ready()
    return []


class Troubled:
    """Causes the troubles of a plan in a thread of its own, spread evenly over a number of kills of workers."""

    def __init__(self, scene: Scene, plan: Sequence[Trouble], kills: int) -> None:
        self._scene = scene
        self._plan = plan
        self._kills = kills
        self._killed = 0
        self._error: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done: list[str] = []
        self._thread.start()

    def heed(self, killed: int) -> bool:
        """Note the number of kills so far; returns whether there is trouble to come."""
        self._killed = killed
        if self._error is not None:
            raise self._error
        return self._thread.is_alive()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for number, trouble in enumerate(self._plan, 1):
                due = self._kills * number / (len(self._plan) + 1)
                while self._killed < due:
                    if self._over.wait(0.02):
                        return
                wait_until(self._scene.watched.is_whole, what="there is a replica to take over")
                trouble(self._scene)
                self.done.append(trouble.__name__)
        except Exception as error:  # noqa: BLE001 - told by `heed`, in the thread of the test
            self._error = error

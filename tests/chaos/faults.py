"""The faults, one function each, and how long they affected the callers."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cli.supervisor.ports import free_port
from tests.chaos.callers import Callers, Told
from tests.chaos.stage import LEASE_TTL_S, Stage, send, stopped_for
from tests.fakes.proxy import LossyProxy

# An answer takes 40 ms here normally, and up to this when Python processes start on the same machine.
SLOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Scene:
    """The processes that a fault may affect. `far` is a proxy between one worker and one frontend and their Redis."""

    stage: Stage
    far: LossyProxy
    rng: random.Random


# Causes the fault, and returns when it is over: from then on everything must recover by itself.
Fault = Callable[[Scene], None]


def kill_executor(scene: Scene) -> None:
    send(scene.rng.choice(scene.stage.executors()), signal.SIGKILL)


def kill_worker(scene: Scene) -> None:
    send(scene.stage.pid(scene.rng.choice(("worker1", "worker2"))), signal.SIGKILL)


def kill_frontend(scene: Scene) -> None:
    scene.rng.choice(scene.stage.frontends()).kill()


def kill_redis(scene: Scene) -> None:
    send(scene.stage.pid("valkey"), signal.SIGKILL)


def stop_worker(scene: Scene) -> None:
    """Stop a worker for longer than the lease TTL."""
    stopped_for(scene.stage.pid(scene.rng.choice(("worker1", "worker2"))), LEASE_TTL_S + 2.0)


def stop_redis(scene: Scene) -> None:
    stopped_for(scene.stage.pid("valkey"), 3.0)


def stop_redis_for_a_minute(scene: Scene) -> None:
    """Stop Redis for longer than every time limit."""
    stopped_for(scene.stage.pid("valkey"), 60.0)


def kill_clients(scene: Scene) -> None:
    with scene.stage.redis() as redis:
        for kind in ("normal", "pubsub"):
            redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def pause_clients(scene: Scene) -> None:
    with scene.stage.redis() as redis:
        redis.execute_command("CLIENT", "PAUSE", 2000, "ALL")
    time.sleep(2.0)


def fill_memory(scene: Scene) -> None:
    """Leave no memory for writes."""
    with scene.stage.redis() as redis:
        redis.config_set("maxmemory", 1)
        time.sleep(2.0)
        redis.config_set("maxmemory", 0)


def demote_redis(scene: Scene) -> None:
    """Make Redis refuse writes, like the replica of an unreachable master."""
    with scene.stage.redis() as redis:
        redis.replicaof("127.0.0.1", str(free_port()))
        time.sleep(2.0)
        redis.replicaof("NO", "ONE")


def cut_connections(scene: Scene) -> None:
    assert scene.far.cut() > 0


def deaden_connections(scene: Scene) -> None:
    assert scene.far.deaden() > 0


ALL: tuple[Fault, ...] = (
    kill_executor,
    kill_worker,
    kill_frontend,
    kill_redis,
    stop_worker,
    stop_redis,
    kill_clients,
    pause_clients,
    fill_memory,
    demote_redis,
    cut_connections,
    deaden_connections,
)

# Once, at the end of the long form.
LAST: Fault = stop_redis_for_a_minute
# One of each family, and the short ones.
SHORT: tuple[Fault, ...] = (kill_executor, kill_worker, kill_frontend, kill_redis, kill_clients, cut_connections)
# After these, `up` has to start a process again.
DEADLY = {kill_worker.__name__, kill_redis.__name__}


@dataclass(frozen=True, slots=True)
class Felt:
    """The effect of one fault. `recovery_s` runs from its end to the end of the last call that failed or was slow."""

    name: str
    lasted_s: float
    recovery_s: float
    suffered: int
    codes: dict[str, int]


def deregister(fault: Fault, scene: Scene, callers: list[Callers], patience_s: float = 60.0) -> Felt:
    """Do it, wait until a second has gone by in which nobody suffered, and sum up."""
    began = time.perf_counter()
    fault(scene)
    ended = time.perf_counter()
    quiet_since = ended
    while (now := time.perf_counter()) - quiet_since < 1.5 * SLOW_S:
        assert now - ended < patience_s, f"callers still suffer from {fault.__name__}"
        time.sleep(0.1)
        told_at = [each.told_at for each in _suffered(callers, began)]
        # A caller that has waited for long is affected, though its outcome is not known yet.
        quiet_since = max([ended, *told_at, *(now for crowd in callers if crowd.longest_wait_s > SLOW_S)])
    hit = list(_suffered(callers, began))
    codes: dict[str, int] = {}
    for each in hit:
        codes[each.code] = codes.get(each.code, 0) + 1
    recovery_s = max((each.told_at - ended for each in hit), default=0.0)
    return Felt(fault.__name__, ended - began, max(0.0, recovery_s), len(hit), codes)


def _suffered(callers: Iterable[Callers], began: float) -> Iterable[Told]:
    for crowd in callers:
        for each in crowd.since(began):
            if each.code != "OK" or each.took_s > SLOW_S:
                yield each


def table(felt: list[Felt]) -> str:
    """Recovery times by kind, worst last, with the codes of the affected callers ("OK": an answer, but a slow one)."""
    lines = [f"{'fault':20} {'count':>5} {'median s':>8} {'worst s':>8}  suffered"]
    for name in dict.fromkeys(each.name for each in felt):
        mine = [each for each in felt if each.name == name]
        recoveries = [each.recovery_s for each in mine]
        codes: dict[str, int] = {}
        for each in mine:
            for code, count in each.codes.items():
                codes[code] = codes.get(code, 0) + count
        told = ", ".join(f"{code} {count}" for code, count in sorted(codes.items())) or "nobody"
        median, worst = statistics.median(recoveries), max(recoveries)
        lines.append(f"{name.replace('_', ' '):20} {len(mine):5} {median:8.2f} {worst:8.2f}  {told}")
    return "\n".join(lines)


def mentions(path: Path, text: str) -> int:
    """Count the occurrences of a text in a log."""
    return path.read_text(errors="replace").count(text) if path.exists() else 0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

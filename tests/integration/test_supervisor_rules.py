"""The supervisor's rules on a clock of the test's own; the processes are real and very small."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from batching.claim.place_lines import PlaceLines
from batching.claim.registry import WorkerRegistry, make_worker_id
from batching.claim.sharded_registry import ShardedRegistry
from cli.supervisor.backoff import Backoff
from cli.supervisor.ports import free_port
from cli.supervisor.probes import Look, leases_given_back
from cli.supervisor.reaper.reaper_client import Reaper
from cli.supervisor.supervised_process import ProcessSpec, State, SupervisedProcess
from cli.supervisor.supervisor import MAX_START_FAILURES, Phase, Supervisor
from config.redis import connect
from config.shards import only_home

_DIES = (sys.executable, "-S", "-c", "raise SystemExit(3)")
_LIVES = (sys.executable, "-S", "-c", "import time; time.sleep(600)")


class Notes:
    """A report that is only remembered."""

    def __init__(self) -> None:
        self.deaths: list[str] = []
        self.errors: list[str] = []

    def died(self, child: SupervisedProcess, why: str) -> None:
        self.deaths.append(f"{child.spec.name} {why}")

    def broken(self, child: SupervisedProcess) -> None:
        self.errors.append(child.error)


class Make:
    """Builds supervisors, and ends what they started."""

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._made: list[Supervisor] = []

    def __call__(self, *specs: ProcessSpec, notes: Notes | None = None, **options: Any) -> Supervisor:
        self._made.append(Supervisor(specs, self._reaper, notes or Notes(), **options))
        return self._made[-1]

    def end(self) -> None:
        for supervisor in self._made:
            supervisor.kill(0.0)
            while supervisor.phase is not Phase.DONE:
                supervisor.tick(0.0)


@pytest.fixture
def make() -> Iterator[Make]:
    reaper = Reaper()
    each = Make(reaper)
    yield each
    each.end()
    reaper.stop()


@pytest.fixture
def spec(tmp_path: Path) -> ProcessSpec:
    return ProcessSpec(
        name="one",
        role="worker",
        command=_LIVES,
        environment=dict(os.environ),
        log_file=tmp_path / "one.log",
        start_stage=1,
        stop_stage=1,
        stop_timeout_s=10.0,
    )


def wait_for_death(child: SupervisedProcess) -> None:
    """Until the process has ended; its zombie is left for the supervisor."""
    assert child.pid is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_restarts_wait_twice_as_long_each_time_and_start_over_after_a_long_life(make: Make, spec: ProcessSpec) -> None:
    notes = Notes()
    backoff = Backoff(first_s=1.0, limit_s=3.0, reset_after_s=100.0)
    supervisor = make(replace(spec, command=_DIES, optional=True), notes=notes, backoff=backoff)
    (child,) = supervisor.children
    now = 0.0
    for wait_s in (1.0, 2.0, 3.0, 3.0):
        supervisor.tick(now)
        wait_for_death(child)
        supervisor.tick(now)
        assert child.state is State.RESTARTING
        supervisor.tick(now + wait_s - 0.01)
        assert child.pid is None
        now += wait_s
    supervisor.tick(now)
    wait_for_death(child)
    supervisor.tick(now + 100.0)
    supervisor.tick(now + 101.0)

    assert child.pid is not None
    assert child.restarts == 5
    assert notes.deaths == ["one exited with 3"] * 5


def test_a_long_wait_before_a_restart_ends_early_but_not_before_the_back_off(make: Make, spec: ProcessSpec) -> None:
    early: list[bool] = []
    spec = replace(spec, command=_DIES, restart_after_s=20.0, restart_early=lambda: bool(early))
    supervisor = make(spec, backoff=Backoff(first_s=1.0))
    (child,) = supervisor.children
    supervisor.tick(0.0)
    wait_for_death(child)
    supervisor.tick(0.0)
    supervisor.tick(19.9)
    assert child.pid is None
    supervisor.tick(20.0)
    assert child.pid is not None
    wait_for_death(child)
    early.append(True)
    for now in (20.0, 20.5, 21.0, 21.9):
        supervisor.tick(now)
        assert child.pid is None
    supervisor.tick(22.0)
    assert child.pid is not None


def test_gives_up_before_the_first_ready_only(make: Make, spec: ProcessSpec) -> None:
    supervisor = make(replace(spec, command=_DIES), ready=lambda: False)
    (child,) = supervisor.children
    now = 0.0
    while supervisor.phase is Phase.STARTING:
        supervisor.tick(now)
        wait_for_death(child)
        supervisor.tick(now)
        now += 20.0
        # Each life is shorter than what counts as long.
        assert child.failures <= MAX_START_FAILURES
    assert "one could not be started: exited with 3" in supervisor.failure


def test_what_a_dead_child_left_is_put_right_at_once_and_tried_until_it_is(make: Make, spec: ProcessSpec) -> None:
    told: list[int] = []

    def aftermath(pid: int) -> bool:
        told.append(pid)
        return len(told) == 3

    supervisor = make(replace(spec, command=_DIES, optional=True, aftermath=aftermath), backoff=Backoff(first_s=100.0))
    (child,) = supervisor.children
    supervisor.tick(0.0)
    pid = child.pid
    wait_for_death(child)
    assert told == []
    supervisor.tick(0.01)
    assert told == [pid]
    # The next start waits out its back-off; this does not.
    supervisor.tick(0.3)
    assert child.pid is None
    for _ in range(3):
        supervisor.tick(0.6)
    assert set(told) == {pid}
    assert len(told) == 3


def test_leases_are_given_back_when_redis_can_be_asked(redis: Redis) -> None:
    worker = make_worker_id(4711)
    WorkerRegistry(redis, 5.0).beat(worker, b"{}")
    away = connect(f"redis://127.0.0.1:{free_port()}/0")

    def registry(client: Redis) -> ShardedRegistry:
        return ShardedRegistry(PlaceLines(only_home(client)), 5.0)

    assert not leases_given_back(registry(away))(4711)
    assert leases_given_back(registry(redis))(4711)
    assert redis.zcard("bunch:workers") == 0


def test_a_later_stage_waits_for_the_earlier_one(make: Make, spec: ProcessSpec) -> None:
    answers = iter([Look(ready=False), Look(ready=True)])
    first = replace(spec, name="first", start_stage=0, probe=lambda _: next(answers))
    supervisor = make(spec, first)
    later, earlier = supervisor.children

    supervisor.tick(0.0)
    assert (earlier.state, later.state) == (State.STARTING, State.WAITING)
    supervisor.tick(1.0)
    supervisor.tick(1.1)
    assert (earlier.state, later.state) == (State.RUNNING, State.STARTING)


def test_what_a_living_child_says_is_broken_is_reported_once(make: Make, spec: ProcessSpec) -> None:
    notes = Notes()
    broken = Look(ready=False, detail="m did not start", error="Traceback: no such file")
    supervisor = make(replace(spec, probe=lambda _: broken), notes=notes)
    for second in range(5):
        supervisor.tick(float(second))

    assert notes.errors == ["Traceback: no such file"]
    assert supervisor.phase is Phase.STARTING


def test_a_demo_stops_at_a_model_that_does_not_load(make: Make, spec: ProcessSpec) -> None:
    broken = Look(ready=False, error="Traceback: no such file")
    supervisor = make(replace(spec, probe=lambda _: broken), give_up_on_errors=True)

    supervisor.tick(0.0)

    assert supervisor.failure == "Traceback: no such file"
    assert supervisor.phase is Phase.STOPPING


def test_ready_needs_every_child_and_the_whole(make: Make, spec: ProcessSpec) -> None:
    whole = iter([False, True])
    never = replace(
        spec, command=_DIES, log_file=spec.log_file.with_name("page.log"), probe=lambda _: Look(ready=False)
    )
    optional = replace(never, name="page", optional=True)
    supervisor = make(spec, optional, ready=lambda: next(whole))
    supervisor.tick(0.0)
    wait_for_death(supervisor.children[1])

    supervisor.tick(1.0)
    assert supervisor.phase is Phase.STARTING
    supervisor.tick(2.0)
    assert supervisor.phase is Phase.READY


def test_in_a_hurry_the_last_stage_waits_for_those_that_give_back_to_it(
    make: Make, spec: ProcessSpec, tmp_path: Path
) -> None:
    marker = tmp_path / "listens"
    code = f"import pathlib, signal; pathlib.Path({str(marker)!r}).touch(); signal.sigwait([signal.SIGQUIT])"
    giver = (sys.executable, "-c", "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGQUIT]);" + code)
    worker = replace(spec, command=giver, hasty_signal=signal.SIGQUIT)
    store = replace(spec, name="store", log_file=tmp_path / "store.log", stop_stage=9)
    supervisor = make(worker, store)
    one, last = supervisor.children
    supervisor.tick(0.0)
    while not marker.exists():
        assert one.reap(0.0) is None

    supervisor.kill(1.0)
    assert (one.state, last.state) == (State.STOPPING, State.RUNNING)
    wait_for_death(one)
    supervisor.tick(1.1)
    assert one.state is State.STOPPED
    wait_for_death(last)
    supervisor.tick(1.2)
    assert supervisor.phase is Phase.DONE


def test_what_does_not_stop_in_its_time_is_killed(make: Make, spec: ProcessSpec, tmp_path: Path) -> None:
    marker = tmp_path / "deaf"
    code = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(marker)!r}).touch(); time.sleep(600)"
    )
    supervisor = make(replace(spec, command=(sys.executable, "-c", code)))
    (child,) = supervisor.children
    supervisor.tick(0.0)
    while not marker.exists():
        assert child.reap(0.0) is None
    supervisor.stop()
    supervisor.tick(1.0)
    supervisor.tick(10.9)
    assert (child.state, child.reap(10.9)) == (State.STOPPING, None)

    supervisor.tick(11.0)
    wait_for_death(child)
    supervisor.tick(11.1)
    assert supervisor.phase is Phase.DONE


def test_more_are_started_and_those_too_many_drained_and_forgotten(
    make: Make, spec: ProcessSpec, tmp_path: Path
) -> None:
    notes = Notes()
    specs = [replace(spec, name=f"worker{n}", log_file=tmp_path / f"worker{n}.log") for n in (1, 2, 3)]
    other = replace(spec, name="web", role="web", log_file=tmp_path / "web.log")
    supervisor = make(specs[0], other, notes=notes)
    supervisor.resize("worker", specs, 0.0)
    assert [each.spec.name for each in supervisor.children] == ["worker1", "web"]
    supervisor.tick(0.0)
    supervisor.tick(1.0)
    assert supervisor.phase is Phase.READY

    supervisor.resize("worker", specs, 1.0)
    supervisor.resize("worker", specs, 1.1)
    assert [each.spec.name for each in supervisor.children] == ["worker1", "web", "worker2", "worker3"]
    third = supervisor.children[-1]
    assert third.pid is not None

    supervisor.resize("worker", specs[:2], 2.0)
    assert third.state is State.STOPPING
    wait_for_death(third)
    # It is wanted again while it goes: it comes back when its name is free.
    supervisor.resize("worker", specs, 2.1)
    assert supervisor.children[-1] is third
    supervisor.tick(2.2)
    supervisor.resize("worker", specs, 2.3)
    assert [each.spec.name for each in supervisor.children] == ["worker1", "web", "worker2", "worker3"]
    assert supervisor.children[-1] is not third
    assert notes.deaths == []


def test_one_that_does_not_drain_in_its_time_is_killed(make: Make, spec: ProcessSpec, tmp_path: Path) -> None:
    deaf = (
        sys.executable,
        "-S",
        "-c",
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)",
    )
    stubborn = replace(spec, name="worker2", command=deaf, log_file=tmp_path / "worker2.log", stop_timeout_s=10.0)
    supervisor = make(spec, stubborn)
    supervisor.tick(0.0)
    supervisor.tick(1.0)
    while not stubborn.log_file.read_text().endswith("\n"):
        time.sleep(0.01)
    supervisor.resize("worker", [spec], 2.0)
    supervisor.tick(11.9)
    child = supervisor.children[-1]
    assert child.state is State.STOPPING
    supervisor.tick(12.0)
    wait_for_death(child)
    supervisor.tick(12.1)
    assert [each.spec.name for each in supervisor.children] == ["one"]

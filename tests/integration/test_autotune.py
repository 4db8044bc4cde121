"""`tune --auto` against a Redis that says what a running system would: kept, taken back, and left alone.

Time does not pass by itself here: whoever waits has the requests of that time written into the batch log, as quick as
the settings of the moment would make them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click import ClickException
from redis import Redis

from batching.capacity.search import Objective
from batching.claim.registry import WorkerRegistry
from cli.plan.autotune import report
from cli.plan.autotune.run import Outcome, Tuner, Wanted
from config.keys import Shard
from config.settings import ModelSettings, Settings
from tasks.fleet.desired_state import DesiredState, with_desired
from tasks.fleet.registry_reader import ExecutorRow, WorkerRow
from tasks.observability.batch_log import BatchLog, BatchRecord, Member

KEYS = Shard()
MODEL = ModelSettings(name="m", source="workers.models.echo:Echo", policy="fixed", max_batch_size=64, max_wait_ms=100)
SETTINGS = Settings(models={"m": MODEL}, default_model="m", admission="off")
WANTED = Wanted(objective=Objective(0.09), record_s=10.0, window_s=5.0, most=None, trace=None, seed=1, dry_run=False)
EVERY_MS = 20


class System:
    """A clock whose `sleep` lets requests come, one each 20 ms, that take as long as `took_ms` says of the settings."""

    def __init__(self, redis: Redis, took_ms: Callable[[ModelSettings], float]) -> None:
        self.redis = redis
        self.controls = DesiredState(redis)
        self.every_ms = EVERY_MS
        self.slept: list[float] = []
        self._took_ms = took_ms
        self._at_ms = 1_000_000.0
        self._count = 0

    def now_ms(self) -> float:
        return self._at_ms

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        took_ms = self._took_ms(self.now())
        until_ms = self._at_ms + seconds * 1000
        while self._at_ms < until_ms:
            self._count += 1
            member = Member(f"r{self._count}", 1, 0, 0, round(took_ms), "OK")
            record = BatchRecord(id=f"b{self._count}", model="m", claimed_ms=int(self._at_ms), members=[member])
            BatchLog(self.redis).write([record])
            self._at_ms += self.every_ms

    def tuned(self) -> dict[str, object]:
        return self.controls.read(("m",))["m"].tuned

    def now(self) -> ModelSettings:
        return with_desired(MODEL, self.controls.read(("m",))["m"])


def as_promised(model: ModelSettings) -> float:
    return 20.0 + (model.max_wait_ms or 0)


@pytest.fixture(autouse=True)
def worker(redis: Redis) -> None:
    """One that has run batches, of 20 ms each; it has no Celery to be told by."""
    row = WorkerRow("w", "host", 1, 0.0, (ExecutorRow("m", "m/0", "ready"),))
    WorkerRegistry(redis, lease_ttl_s=60.0).beat(row.id, msgspec.json.encode(row))
    for name, value in (
        ("bunch_batch_size_count", 50),
        ("bunch_batch_size_sum", 50),
        ("bunch_compute_seconds_count", 50),
        ("bunch_compute_seconds_sum", 1.0),
    ):
        redis.hincrbyfloat(KEYS.metrics(), msgspec.json.encode([name, {"model": "m"}]).decode(), value)


def run(redis: Redis, system: System, wanted: Wanted = WANTED) -> Outcome:
    settings = msgspec.structs.replace(SETTINGS, lease_ttl_ms=60_000)
    return Tuner(settings, redis, "m", wanted, lambda _: None, system).run()


def test_a_change_that_does_what_it_promised_is_kept(redis: Redis) -> None:
    system = System(redis, as_promised)
    outcome = run(redis, system)
    assert (outcome.state, outcome.good) == ("kept", True), outcome.why
    assert system.tuned() == outcome.changes
    assert (system.now().max_wait_ms or 0) < 70
    assert outcome.before is not None
    assert outcome.after is not None
    assert (outcome.before.attainment, outcome.after.attainment) == (0.0, 1.0)
    assert outcome.before.rps == pytest.approx(50, rel=0.02)
    assert "confirmed: 100.0% in time, before 0.0%" in outcome.why
    # Both windows, what passes until they are written down, and the time to settle.
    assert len(system.slept) == 5

    shown = report.as_json(outcome, "m", WANTED.objective)
    assert shown["outcome"] == "kept"
    assert shown["live"]["before"]["p95_ms"] == pytest.approx(120)
    assert shown["recorded"]["requests"] >= 240
    assert shown["service"]["batch_ms"] == 20
    assert shown["simulated"]["now"]["settings"]["max_wait_ms"] == 100
    report.show(outcome, WANTED.objective)


def test_a_change_that_makes_it_worse_is_taken_back(redis: Redis) -> None:
    system = System(redis, lambda model: 200.0 if model.max_wait_ms != 90 else 40.0)
    system.controls.tune(MODEL, {"max_wait_ms": 90, "lead_ms": 3.0})
    outcome = run(redis, system)
    assert (outcome.state, outcome.good) == ("taken back", False)
    assert "worse: 0.0% in time, before 100.0%" in outcome.why
    assert outcome.changes
    assert system.tuned() == {"max_wait_ms": 90, "lead_ms": 3.0}


def test_a_load_that_changes_confirms_nothing(redis: Redis) -> None:
    def took_ms(model: ModelSettings) -> float:
        if model.max_wait_ms != 100:
            system.every_ms = 2 * EVERY_MS
        return as_promised(model)

    system = System(redis, took_ms)
    outcome = run(redis, system)
    assert outcome.state == "taken back"
    assert "the load went from 50" in outcome.why
    assert system.tuned() == {}


def test_whoever_is_interrupted_leaves_what_was(redis: Redis) -> None:
    def took_ms(model: ModelSettings) -> float:
        if model.max_wait_ms != 100:
            raise KeyboardInterrupt
        return as_promised(model)

    system = System(redis, took_ms)
    with pytest.raises(KeyboardInterrupt):
        run(redis, system)
    assert system.tuned() == {}


def test_what_somebody_else_tunes_meanwhile_stays(redis: Redis) -> None:
    def took_ms(model: ModelSettings) -> float:
        if model.max_wait_ms != 100:
            system.controls.tune(MODEL, {"max_wait_ms": "7"})
        return 500.0

    system = System(redis, took_ms)
    outcome = run(redis, system)
    assert (outcome.state, outcome.good) == ("left", False)
    assert system.tuned()["max_wait_ms"] == 7


def test_a_dry_run_changes_nothing_and_does_not_wait(redis: Redis) -> None:
    system = System(redis, as_promised)
    system.sleep(10.0)
    outcome = run(redis, system, _dry())
    assert (outcome.state, outcome.good) == ("dry run", True)
    assert outcome.changes
    assert system.tuned() == {}
    assert system.slept == [10.0]


def test_what_is_good_is_left_as_it_is(redis: Redis) -> None:
    system = System(redis, as_promised)
    run(redis, system)
    changed = system.tuned()
    again = run(redis, system)
    assert (again.state, again.good, again.changes) == ("unchanged", True, {})
    assert system.tuned() == changed


def test_a_record_of_ones_own(redis: Redis, tmp_path: Path) -> None:
    trace = tmp_path / "arrivals.csv"
    trace.write_text("at_ms\n" + "\n".join(str(n * 10) for n in range(200)))
    outcome = run(redis, System(redis, as_promised), _dry(trace=trace))
    assert outcome.source == str(trace)
    assert len(outcome.recorded.at_s) == 200


@pytest.mark.parametrize("missing", ["requests", "executors", "batches"])
def test_what_is_missing_is_named(redis: Redis, missing: str) -> None:
    system = System(redis, as_promised)
    if missing != "requests":
        system.sleep(10.0)
    if missing == "executors":
        redis.delete(KEYS.workers())
    if missing == "batches":
        redis.delete(KEYS.metrics())
    said = {"requests": "only 0 requests", "executors": "no executor of m", "batches": "no batch of this model"}
    with pytest.raises(ClickException, match=said[missing]):
        run(redis, system, _dry())


def _dry(**others: object) -> Wanted:
    return replace(WANTED, dry_run=True, **others)  # type: ignore[arg-type]

"""The autoscaler over a private Valkey, and `manage.py autoscale` beside an `up` whose workers are stand-ins."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from redis import Redis

from batching.claim.registry import WorkerRegistry
from batching.policy import ScalingRules, Step
from cli.operate.autoscale import autoscale as autoscale_command
from cli.operate.autoscaler import Autoscaler, Exported, Gauge, LocalUp
from config.keys import Shard
from config.redis import connect
from config.schema import PoolSettings
from config.settings import ModelSettings, Settings
from config.tiers import Tier
from tasks.fleet.queue_reader import QueueReader
from tasks.fleet.registry_reader import ExecutorRow, Fleet, WorkerRow
from tasks.fleet.scaling import KEPT_S, ScaleBoard
from tasks.observability.metrics import SharedMetrics
from tests.integration.test_supervisor import PATIENCE_S, ROOT, DummyUp
from tests.shards import inherited_environment, places_of
from tests.waiting import wait_until

KEYS = Shard()
MODEL = ModelSettings(name="m", source="workers.models.echo:Echo", max_batch_size=64)
SETTINGS = Settings(models={"m": MODEL}, default_model="m")
RULES = ScalingRules(steps=(Step(100, 10.0, 2),), drain_for_s=20.0, idle_for_s=60.0, after_down_s=0.0, cold_start_s=5.0)
CONFIG = '[models.m]\nsource = "workers.models.echo:Echo"\n'


class Hand:
    """An actor that only remembers."""

    def __init__(self) -> None:
        self.wanted: list[int] = []
        self.on_their_way = 0

    def starting(self, ready: int, group: str) -> int:
        return self.on_their_way

    def want(self, workers: int, group: str) -> None:
        self.wanted.append(workers)


def beat(redis: Redis, *busy: float) -> None:
    for n, part in enumerate(busy):
        row = WorkerRow(f"w{n}", "host", 1, 0.0, (ExecutorRow("m", f"m/{n}", "ready", busy=part),))
        WorkerRegistry(redis, lease_ttl_s=5.0).beat(row.id, msgspec.json.encode(row))


def serve(redis: Redis, batches: int, size: int, seconds: float) -> None:
    """The sums that workers would have added."""
    for name, by in (
        ("bunch_batch_size_count", batches),
        ("bunch_batch_size_sum", batches * size),
        ("bunch_compute_seconds_count", batches),
        ("bunch_compute_seconds_sum", batches * seconds),
    ):
        redis.hincrbyfloat(KEYS.metrics(), msgspec.json.encode([name, {"model": "m"}]), by)


def gauge_of(redis: Redis, settings: Settings, clock: Callable[[], float]) -> Gauge:
    fleet = Fleet(redis)
    return Gauge(settings, fleet, QueueReader(places_of(redis), fleet), SharedMetrics(redis), clock)


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def scaler(redis: Redis, clock: list[float], hand: Hand) -> Autoscaler:
    gauge = gauge_of(redis, SETTINGS, lambda: clock[0])
    return Autoscaler(RULES, gauge, hand, ScaleBoard(redis))


def test_a_backlog_that_stays_calls_for_more(redis: Redis, scaler: Autoscaler, clock: list[float], hand: Hand) -> None:
    beat(redis, 1.0)
    redis.lpush(KEYS.queue("m", Tier.PAID), *["x"] * 101)
    first = scaler.step(0.0)
    assert (first.wanted, first.ready, first.depth, first.drain_s) == (1, 1, 101, None)
    clock[0] = 10.0
    serve(redis, batches=10, size=10, seconds=0.1)
    grown = scaler.step(10.0)
    assert (grown.wanted, grown.drain_s) == (3, 10.1)
    assert "100 waiting" in grown.reason
    assert hand.wanted == [3]
    # What is on its way counts: no more are called for the same backlog.
    hand.on_their_way = 2
    clock[0] = 15.0
    assert scaler.step(15.0).wanted == 3
    assert hand.wanted == [3]


def test_use_is_of_what_full_batches_could_do(redis: Redis, scaler: Autoscaler, clock: list[float]) -> None:
    """An executor that takes small batches as soon as it is free is always busy, and far from full."""
    beat(redis, 1.0)
    scaler.step(0.0)
    for second, size in enumerate((2, 8, 4), 1):
        clock[0] = float(second)
        serve(redis, batches=40, size=size, seconds=0.020 + 0.0005 * size)
        row = scaler.step(float(second))
    # 160 a second of 64 / 52 ms = 1,231.
    assert row.use == pytest.approx(160 / 1231, rel=0.01)


def test_busy_counts_until_batches_are_known(redis: Redis, scaler: Autoscaler) -> None:
    beat(redis, 0.5, 0.7)
    row = scaler.step(0.0)
    assert (row.ready, row.use) == (2, 0.6)


def test_little_use_lets_one_go(redis: Redis, scaler: Autoscaler, hand: Hand) -> None:
    beat(redis, 0.1, 0.1, 0.1)
    for now in (0.0, 30.0, 60.0):
        row = scaler.step(now)
    assert row.wanted == 2
    assert hand.wanted == [2]


def test_the_decision_is_there_for_others_and_does_not_outlive_its_maker(redis: Redis, scaler: Autoscaler) -> None:
    assert ScaleBoard(redis).read() is None
    beat(redis, 0.5)
    row = scaler.step(0.0)
    assert ScaleBoard(redis).read() == row
    assert 0 < redis.ttl(KEYS.scale()) <= KEPT_S


def asked(redis: Redis, code: str, number: int = 1) -> None:
    labels = {"model": "m", "tier": "paid", "code": code, "door": "bunch"}
    redis.hincrbyfloat(KEYS.metrics(), msgspec.json.encode(["bunch_requests_total", labels]), number)


def exporting(redis: Redis, clock: list[float], rules: ScalingRules = RULES) -> Autoscaler:
    gauge = gauge_of(redis, SETTINGS, lambda: clock[0])
    board = ScaleBoard(redis)
    return Autoscaler(rules, gauge, Exported(board.read(), 40.0, lambda: clock[0]), board)


def looks(scaler: Autoscaler, clock: list[float], *times: float) -> list[int]:
    seen = []
    for now in times:
        clock[0] = now
        seen.append(scaler.step(now).wanted)
    return seen


def test_what_is_exported_stands_until_others_have_followed(redis: Redis, clock: list[float]) -> None:
    beat(redis, 1.0)
    redis.lpush(KEYS.queue("m", Tier.PAID), *["x"] * 101)
    assert looks(exporting(redis, clock), clock, 0.0, 10.0, 14.0, 19.0) == [1, 3, 3, 3]
    # Also if the autoscaler is restarted meanwhile.
    assert looks(exporting(redis, clock), clock, 20.0) == [3]


def test_workers_that_stay_though_they_should_go_are_counted_again(redis: Redis, clock: list[float]) -> None:
    beat(redis, 0.1, 0.1, 0.1)
    scaler = exporting(redis, clock)
    assert looks(scaler, clock, 0.0, 30.0, 60.0, 65.0) == [3, 3, 2, 2]
    # Forty seconds later: whoever applies it has a minimum of its own.
    assert looks(scaler, clock, 100.0, 105.0) == [2, 3]


def test_a_refused_request_calls_the_first_worker(redis: Redis, clock: list[float]) -> None:
    """Nothing is queued for a model that nobody has ever served, so no queue shows that it is wanted."""
    scaler = exporting(redis, clock, replace(RULES, least=0))
    assert looks(scaler, clock, 0.0, 5.0) == [0, 0]
    asked(redis, "INVALID_INPUT")
    assert looks(scaler, clock, 10.0) == [0]
    asked(redis, "MODEL_UNAVAILABLE")
    assert looks(scaler, clock, 15.0, 20.0) == [1, 1]


def test_a_pool_has_limits_of_its_own(redis: Redis, clock: list[float]) -> None:
    pools = {name: PoolSettings(name=name, models=("m",)) for name in ("small", "large")}
    gauge = gauge_of(redis, msgspec.structs.replace(SETTINGS, pools=pools), lambda: clock[0])
    own = {"large": replace(RULES, least=2, most=3)}
    row = Autoscaler(RULES, gauge, Hand(), None, own).step(0.0)
    assert {each.pool: each.wanted for each in row.groups} == {"small": 1, "large": 2}


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("large", "must be POOL=MIN:MAX"),
        ("large=3:2", "must be at most the maximum"),
        ("other=1:2", "there is no pool other; pools are: large"),
        ("large=0:2", "needs --export-only"),
    ],
)
def test_limits_that_make_no_sense_are_refused(
    tmp_path: Path, limits: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "bunch.toml"
    config.write_text(f'{CONFIG}[pools.large]\nmodels = ["m"]\n')
    monkeypatch.setenv("BUNCH_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr("cli.supervisor.state.read", lambda _: object())
    result = CliRunner().invoke(autoscale_command, ["--config", str(config), "--limits", limits, "--duration", "0"])
    assert (result.exit_code, said in result.output) == (2, True), result.output


@pytest.fixture
def up(tmp_path: Path) -> Iterator[DummyUp]:
    each = DummyUp(tmp_path / "var").start().wait_ready()
    yield each
    each.look()
    each.process.send_signal(signal.SIGTERM)
    assert each.process.wait(PATIENCE_S) == 0
    assert each.left() == []


def autoscale(up: DummyUp, *options: str) -> subprocess.Popen[str]:
    config = up.state_dir.parent / "bunch.toml"
    config.write_text(CONFIG)
    inherited = inherited_environment()
    return subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "autoscale", "--json", "--config", str(config), *options],
        cwd=config.parent,
        env=inherited | {"BUNCH_STATE_DIR": str(up.state_dir)},
        stdout=subprocess.PIPE,
        text=True,
    )


def processes(up: DummyUp) -> list[str]:
    document = json.loads((up.state_dir / "up.json").read_text())
    return sorted(row["state"] for row in document["processes"] if row["role"] == "worker")


def test_workers_of_up_are_really_added_and_drained(up: DummyUp) -> None:
    redis = connect(json.loads((up.state_dir / "up.json").read_text())["redis_url"])
    beat(redis, 1.0)
    redis.lpush(KEYS.queue("m", Tier.PAID), *["x"] * 50)
    quick = ("--interval", "0.2", "--drain-for", "0.5", "--cold-start", "0.3", "--idle-for", "0.5", "--cool-down", "0")
    scaler = autoscale(up, *quick, "--min", "1", "--max", "3")
    try:
        # Nothing is served, so what waits would never be drained.
        wait_until(lambda: processes(up) == ["running"] * 3, up.text)
        redis.delete(KEYS.queue("m", Tier.PAID))
        wait_until(lambda: beat(redis, 0.0, 0.0, 0.0) or len(processes(up)) < 3, up.text)
        wait_until(lambda: beat(redis, 0.0) or processes(up) == ["running"], up.text)
    finally:
        scaler.send_signal(signal.SIGINT)
        said, _ = scaler.communicate(timeout=PATIENCE_S)
    assert scaler.returncode == 0
    rows = [json.loads(line) for line in said.splitlines()]
    assert max(row["wanted"] for row in rows) == 3
    assert {"worker2 asked", "worker2 ended", "worker3 asked", "worker3 ended"} <= set(up.record())
    assert "worker1 asked" not in up.record()


def test_a_dry_run_changes_nothing(up: DummyUp) -> None:
    redis = connect(json.loads((up.state_dir / "up.json").read_text())["redis_url"])
    redis.lpush(KEYS.queue("m", Tier.PAID), *["x"] * 50)
    scaler = autoscale(up, "--dry-run", "--min", "2", "--duration", "0")
    said, _ = scaler.communicate(timeout=PATIENCE_S)
    (row,) = [json.loads(line) for line in said.splitlines()]
    assert row["wanted"] == 2
    assert "allowed" in row["reason"]
    assert not (up.state_dir / "up.wanted").exists()
    assert ScaleBoard(redis).read() is None
    assert processes(up) == ["running"]


def test_what_is_asked_of_up_is_read_with_care(tmp_path: Path) -> None:
    up_here = LocalUp(tmp_path)
    assert up_here.starting(0) == 0
    up_here.want(3)
    assert up_here.starting(1) == 2
    for rubbish in ("", "many", "0", "-1"):
        (tmp_path / "up.wanted").write_text(rubbish)
        assert up_here.starting(0) == 0

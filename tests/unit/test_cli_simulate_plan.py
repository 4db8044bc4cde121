"""`manage.py simulate` and `plan`: what they print, their JSON, their exit status."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from batching.capacity.designs import DESIGNS
from batching.capacity.plan import plan
from batching.capacity.processes import costs_for
from batching.capacity.search import Objective
from cli.commands import cli
from cli.plan import capacity_page
from tasks.observability.batch_times import NoBatches, Totals, fit

# Minutes of virtual time: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow

SHORT = ("--duration", "5", "--rps", "100")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_simulate_says_what_the_contract_says() -> None:
    result = run("simulate", *SHORT, "--policy", "idle", "--policy", "fixed", "--tiers", "5/25/70", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["seed"] == 1
    assert [each["policy"] for each in answer["runs"]] == ["idle", "fixed"]
    for each in answer["runs"]:
        assert {
            *("name", "policy", "offered_rps", "throughput_rps", "goodput_rps", "p50_ms", "p95_ms", "p99_ms"),
            *("p99_9_ms", "mean_batch", "utilisation", "refused"),
        } <= each.keys()
        assert set(each["refused"]) == {"enterprise", "paid", "free"}
        assert each["p50_ms"] <= each["p95_ms"] <= each["p99_ms"] <= each["p99_9_ms"]


def test_sizes_spare_a_model_that_compiles_for_each() -> None:
    compiles = ("--policy", "adaptive", "--batch-ms", "2", "--item-ms", "1", "--new-size-ms", "500")
    free, few = (
        json.loads(run("simulate", *SHORT, *compiles, *sizes, "--json").stdout)["runs"][0]
        for sizes in ((), ("--batch-sizes", "1,2,4,8,16"))
    )
    assert few["p99_ms"] < 100 < free["p99_ms"]


@pytest.mark.usefixtures("short_runs")
def test_a_plan_counts_the_padding() -> None:
    full = ("plan", "--rps", "1000", "--batch-ms", "0", "--item-ms", "1", "--max-batch", "33", "--json")
    free, padded = (json.loads(run(*full, *sizes).stdout) for sizes in ((), ("--batch-sizes", "64")))
    assert padded["rps_per_gpu"] < 0.6 * free["rps_per_gpu"]


def test_the_same_seed_prints_the_same() -> None:
    one, again, other = (run("simulate", *SHORT, "--jitter", "0.2", "--json", "--seed", seed) for seed in "112")
    assert one.stdout == again.stdout
    assert json.loads(one.stdout)["runs"] != json.loads(other.stdout)["runs"]


@pytest.mark.parametrize(
    "options",
    [
        ("--arrivals", "bursts", "--burst-size", "50"),
        ("--arrivals", "diurnal"),
        ("--arrivals", "onoff"),
        ("--arrivals", "callers", "--concurrency", "8", "--think-ms", "5"),
        ("--measured", "1=20,64=50"),
        ("--crash-every", "0.5", "--restart", "0.1", "--error-rate", "0.1"),
        ("--timeout-ms", "200", "--queue-timeout-ms", "100"),
        ("--ideal",),
        ("--admission", "drain", "--rps", "5000", "--tiers", "5/25/70"),
        ("--admission", "depth"),
    ],
)
def test_every_workload_runs(options: tuple[str, ...]) -> None:
    result = run("simulate", *SHORT, "--policy", "adaptive", *options)
    assert result.exit_code == 0, result.output
    assert "adaptive" in result.stdout
    assert "seed 1" in result.stdout


def test_a_trace_and_a_plot(tmp_path: Path) -> None:
    trace, plot = tmp_path / "trace.csv", tmp_path / "plot.svg"
    trace.write_text("at_ms,tier\n0,paid\n100,free\n", encoding="utf-8")
    result = run("simulate", "--trace", str(trace), "--plot", str(plot), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["runs"][0]["requests"] == 2
    assert plot.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tiers", "1/2"), "enterprise/paid/free"),
        (("--measured", "fast"), "1=21"),
        (("--batch-ms", "0", "--item-ms", "0"), "some time"),
        (("--policy", "psychic"), "psychic"),
        (("--batch-sizes", "8,4"), "ascending"),
        (("--batch-sizes", "few"), "whole numbers"),
        (("--arrivals", "diurnal", "--peak-rps", "900"), "twice"),
    ],
)
def test_wrong_usage_is_named(options: tuple[str, ...], said: str) -> None:
    result = run("simulate", *SHORT, *options)
    assert result.exit_code == 2
    assert said in result.output


def test_nothing_answered_is_a_failure(tmp_path: Path) -> None:
    assert run("simulate", *SHORT, "--timeout-ms", "1").exit_code == 1


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that are confirmed with a few thousand requests, where a command takes 150,000 for its percentiles."""
    monkeypatch.setattr("cli.plan.plan.plan", lambda load: plan(dataclasses.replace(load, requests=4_000)))


@pytest.mark.usefixtures("short_runs")
def test_plan_says_what_the_contract_says() -> None:
    usual = ("--rps", "1000", "--batch-ms", "100", "--max-batch", "32", "--percentile", "95", "--gpu-hour-cost", "2")
    result = run("plan", *usual, "--slo-ms", "200", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert {"gpus", "web_processes", "redis_ops_per_s", "redis_memory_bytes", "feasible", "why"} <= answer.keys()
    assert answer["feasible"] is True
    assert answer["gpus"] == 5
    assert answer["redis_memory_bytes"] > 60 * 1000 * 1024
    assert answer["bandwidth_bytes_per_s"] == 1000 * (1024 + 600)
    dear = json.loads(run("plan", *usual, "--slo-ms", "200", "--gb-cost", "10", "--json").stdout)
    assert dear["cost_per_million"] == pytest.approx(answer["cost_per_million"] + 16.24)
    people = run("plan", *usual, "--slo-ms", "200")
    assert "web processes" in people.stdout
    assert "1.6 MB/s" in people.stdout
    assert f"{1000 * costs_for(1024).redis_us / 1e6:.0%}" in people.stdout
    assert "a million requests" in people.stdout


def test_plan_fails_when_no_fleet_holds_it() -> None:
    result = run("plan", "--rps", "1000", "--batch-ms", "100", "--slo-ms", "50", "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["feasible"] is False
    assert "faster model" in answer["why"]


@pytest.mark.parametrize("options", [("--batch-ms", "10"), ("--rps", "10")])
def test_plan_needs_a_load_and_a_model(options: tuple[str, ...]) -> None:
    assert run("plan", *options).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("echo", "--slo-ms=100"), "--slo-ms can only be used with --auto"),
        (("echo", "--dry-run", "--seed=0"), "--dry-run, --seed can only be used with --auto"),
        (("--auto", "echo"), "--slo-ms"),
        (("--auto", "echo", "--slo-ms=100", "policy=idle"), "do not give any"),
    ],
)
def test_wrong_usage_of_tune_is_named_without_a_system(arguments: tuple[str, ...], said: str) -> None:
    result = run("tune", *arguments)
    assert result.exit_code == 2
    assert said in result.output


def totals(*batches: tuple[float, float, float]) -> list[Totals]:
    """Running sums of (batches, mean size, mean seconds) per second."""
    sums, out = [0.0, 0.0, 0.0], [Totals(0, 0, 0, 0)]
    for count, size, seconds in batches:
        sums = [sums[0] + count, sums[1] + count * size, sums[2] + count * seconds]
        out.append(Totals(sums[0], sums[1], sums[0], sums[2]))
    return out


def test_the_line_through_what_was_measured() -> None:
    times = fit(totals((10, 4, 0.022), (8, 10, 0.025), (6, 40, 0.040)))
    assert (times.batch_s, times.item_s) == (pytest.approx(0.020), pytest.approx(0.0005))
    assert times.seconds(64) == pytest.approx(0.052)
    assert "3 readings" in times.how


def test_a_batch_that_is_inside_the_model_makes_the_others_no_quicker() -> None:
    assert fit([Totals(0, 0, 0, 0), Totals(6, 96, 5, 0.25)]).batch_s == pytest.approx(0.05)
    assert fit([Totals(6, 96, 5, 0.25)]).batch_s == pytest.approx(0.05)
    with pytest.raises(NoBatches):
        fit([Totals(1, 16, 0, 0.0)])


def test_sizes_that_do_not_vary_tell_no_slope() -> None:
    times = fit(totals((10, 4, 0.022), (9, 4, 0.022)))
    assert (times.batch_s, times.item_s) == (pytest.approx(0.022), 0.0)


def test_nothing_to_measure_is_said() -> None:
    quiet = [Totals(50, 100, 50, 1.0)] * 3
    assert fit(quiet).batch_s == pytest.approx(0.02)
    with pytest.raises(NoBatches, match="no batch"):
        fit(totals())


def test_the_page_is_filled_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small: Any = [DESIGNS[2]]
    monkeypatch.setattr("cli.plan.plan.DESIGNS", small)
    monkeypatch.setattr("batching.capacity.designs._DURATION_S", 20.0)
    monkeypatch.setattr("cli.plan.plan.POLICIES", ("idle",))
    page = tmp_path / "capacity.md"
    page.write_text("before\n<!-- designs: begin -->\nold\n<!-- designs: end -->\nafter\n", encoding="utf-8")
    result = run("plan", "--designs", "--write", str(page))
    assert result.exit_code == 0, result.output
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "\nold\n" not in text
    assert "| `idle` |" in text
    bare = tmp_path / "bare.md"
    bare.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="has no"):
        capacity_page.fill(bare, [], {})
    assert DESIGNS[2].objective == Objective(0.2, 0.95)

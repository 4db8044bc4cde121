"""The process that limits a fleet, by the utilisation law."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from batching.capacity.processes import (
    EXECUTOR,
    FRONTEND,
    MEASURED,
    REDIS,
    SIZES,
    WORKER,
    Fleet,
    UnitCosts,
    bound,
    bounds,
    costs_for,
    executors_rps,
    served,
)
from cli.commands import cli
from cli.plan import processes_page

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
COSTS = UnitCosts(frontend_us=50, redis_us=20, worker_us=25, executor_us=5)
SLOW = processes_page.model_of(0.05, 0.0, 64, "adaptive", 5.0)
costs = st.builds(UnitCosts, *[st.floats(0.1, 1000)] * 4)
sizes = st.integers(1, 64)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", "--processes", *arguments])


@given(costs, sizes, sizes)
def test_the_limit_is_busy_all_the_time_and_nobody_is_busier(each: UnitCosts, frontends: int, workers: int) -> None:
    found = bound(Fleet(frontends, workers), each)
    assert found.busy[found.limit] == pytest.approx(1)
    assert max(found.busy.values()) == pytest.approx(1)
    processes = {FRONTEND: frontends, REDIS: 1, WORKER: workers, EXECUTOR: workers}
    assert found.cores == pytest.approx(sum(processes[role] * busy for role, busy in found.busy.items()))


@given(costs, sizes, sizes)
def test_more_processes_are_never_slower_and_help_only_until_redis_is_the_limit(
    each: UnitCosts, frontends: int, workers: int
) -> None:
    small, large = (bound(Fleet(n * frontends, n * workers), each) for n in (1, 2))
    if small.busy[REDIS] > 1 - 1e-9:
        assert large.rps == pytest.approx(small.rps)
        assert large.limit == REDIS
    else:
        assert small.rps < large.rps <= small.rps * 2 * (1 + 1e-9)
    assert large.rps <= 1e6 / each.redis_us * (1 + 1e-9)


def test_each_role_can_be_the_limit() -> None:
    assert bound(Fleet(1, 1), COSTS).limit == FRONTEND
    assert bound(Fleet(8, 1), COSTS).limit == WORKER
    assert bound(Fleet(8, 8), COSTS).limit == REDIS
    assert bound(Fleet(8, 8), COSTS, executors_rps=1000).limit == EXECUTOR


def test_costs_of_another_payload_are_on_the_line_through_both_measurements() -> None:
    (small, low), (large, high) = sorted(MEASURED.items())
    assert costs_for(small) == low == costs_for(0)
    assert costs_for(large).redis_us == pytest.approx(high.redis_us)
    assert costs_for((small + large) // 2).frontend_us == pytest.approx((low.frontend_us + high.frontend_us) / 2)
    assert costs_for(2 * large).worker_us > high.worker_us


def test_a_process_keeps_as_many_executors_busy_as_it_has_time_for() -> None:
    assert served(COSTS, 1000) == {FRONTEND: 20, REDIS: 50, WORKER: 40}
    assert bound(Fleet(1, 64), COSTS, 20 * 1000).limit in {FRONTEND, EXECUTOR}
    assert bound(Fleet(1, 64), COSTS, 21 * 1000).limit == FRONTEND


def test_executors_lose_something_between_two_batches_and_scale_with_their_number() -> None:
    one, four = executors_rps(1, SLOW), executors_rps(4, SLOW)
    assert 0.9 * 1280 < one < 1280
    assert four == pytest.approx(4 * one, rel=0.02)


def test_the_capacity_page_has_the_table_that_the_code_gives() -> None:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- {processes_page.MARK}: begin -->\n")
    table, end, _ = rest.partition(f"\n<!-- {processes_page.MARK}: end -->")
    assert end
    assert table == processes_page.page_table(), "write it again: manage.py plan --processes --write docs/capacity.md"


def test_the_page_is_written_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- processes: begin -->\nold\n<!-- processes: end -->\nz\n", encoding="utf-8")
    assert run("--write", str(page)).exit_code == 0
    assert page.read_text(encoding="utf-8") == (
        f"a\n<!-- processes: begin -->\n{processes_page.page_table()}\n<!-- processes: end -->\nz\n"
    )


def test_the_command_shows_what_limits_each_size_with_and_without_a_model() -> None:
    quick = json.loads(run("--json", "--payload-bytes=60").output)
    assert [each["frontends"] for each in quick] == list(SIZES)
    assert [each["limit"] for each in quick] == [each.limit for each in bounds(MEASURED[60]).values()]
    slow = json.loads(run("--json", "--payload-bytes=60", "--batch-ms=50").output)
    assert {each["limit"] for each in slow} == {EXECUTOR}
    assert (
        f"| 8, 8 | {round(slow[-1]['rps'], -2):,.0f} | executor |" in run("--payload-bytes=60", "--batch-ms=50").output
    )

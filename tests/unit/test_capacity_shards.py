"""The costs of a queue over several shards, and the page of large fleets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from batching.capacity import shards as capacity
from batching.capacity.formulas import HEADROOM
from batching.capacity.processes import MEASURED, UnitCosts
from batching.capacity.shards import Calls, costs_of, fleet, shards_of_flush
from batching.simulator import Shards
from cli.commands import cli
from cli.plan import shards_page

PAGE = (Path(__file__).parents[2] / "docs" / "large-fleets.md").read_text(encoding="utf-8")
SMALL = shards_page.load_of(2000.0, 1)
counts = st.floats(0, 10)
calls = st.builds(Calls, counts, counts, counts, counts)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments])


def rows_of(mark: str) -> list[str]:
    _, _, rest = PAGE.partition(f"<!-- {mark}: begin -->\n")
    table, end, _ = rest.partition(f"\n<!-- {mark}: end -->")
    assert end
    return table.splitlines()


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


@given(st.integers(1, 64), st.integers(1, 200))
def test_a_flush_goes_to_no_more_shards_than_there_are_nor_than_it_has_requests(shards: int, flush: int) -> None:
    expected = shards_of_flush(shards, flush)
    assert 1 - 1e-9 <= expected <= min(shards, flush) + 1e-9


def test_the_calls_of_the_measurement_cost_what_was_measured() -> None:
    costs = MEASURED[60]
    same = costs_of(costs, capacity._MEASURED_CALLS)
    assert same == costs


@given(calls, calls)
def test_more_calls_never_cost_less(some: Calls, more: Calls) -> None:
    costs = UnitCosts(30, 20, 20, 5)
    both = Calls(
        some.submits + more.submits,
        some.looks + more.looks,
        some.claims + more.claims,
        some.finishes + more.finishes,
    )
    before, after = costs_of(costs, some), costs_of(costs, both)
    assert after.redis_us >= before.redis_us
    assert after.frontend_us >= before.frontend_us
    assert after.worker_us >= before.worker_us
    # The model's own time is nobody's call.
    assert after.executor_us == costs.executor_us


@pytest.fixture
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short runs, where no figure of the page is at stake."""
    monkeypatch.setattr(capacity, "_REQUESTS", 5_000)


@pytest.mark.usefixtures("few_requests")
def test_nodes_have_whole_shards_and_are_not_busier_than_planned() -> None:
    """8 shards of which a node can take 1.6: each has one, though six nodes would do if shards were divided."""
    load = replace(SMALL, rps=2000.0 * 30, models=30)
    found = fleet(load, Shards(8))
    whole_us = found.costs.redis_us * load.rps
    assert found.redis_nodes == 8
    assert found.redis_busy == pytest.approx(whole_us / 1e6 / 8)
    assert found.feasible == (found.redis_busy <= HEADROOM)
    few = fleet(SMALL, Shards(8))
    assert (few.redis_nodes, few.feasible) == (1, True)
    assert not fleet(replace(load, rps=200_000.0, models=100), Shards(1)).feasible


@pytest.mark.slow
def test_the_page_has_the_tables_that_the_code_gives() -> None:
    """All rows are there; a row of each table, and the fleet, are computed again."""
    advice = "write it again: manage.py plan --shards 1 --write docs/large-fleets.md"
    one, many = shards_page.load_of(shards_page.RPS, 1), shards_page.load_of(shards_page.RPS, shards_page.MODELS)
    named = [[f"{each.count}", "all" if each.reach >= each.count else f"{each.reach}"] for each in shards_page.ROWS]
    for mark in (shards_page.ONE, shards_page.MANY):
        assert [row.split(" | ")[:2] for row in rows_of(mark)[2:]] == [[f"| {a}", b] for a, b in named], advice
    chosen = fleet(one, shards_page.CHOSEN)
    assert line(shards_page.row(chosen)) in rows_of(shards_page.ONE), advice
    assert line(shards_page.with_executors(many, Shards(4))) in rows_of(shards_page.MANY), advice
    assert shards_page.bill(one, chosen).splitlines() == rows_of(shards_page.BILL), advice


@pytest.mark.usefixtures("few_requests")
def test_the_command_has_a_row_for_each_number_of_shards_and_each_reach() -> None:
    asked = ["--shards=2,4", "--reach=1,4", "--rps=2000", "--batch-ms=50"]
    found = json.loads(run(*asked, "--json").output)
    assert [(each["shards"], each["reach"]) for each in found] == [(2, 1), (2, 2), (4, 1), (4, 4)]
    assert all(each["feasible"] and each["executors"] == 3 for each in found)
    assert found[3]["calls_per_request"]["claims"] > 2 * found[2]["calls_per_request"]["claims"]
    table = run(*asked).output.splitlines()
    assert [row.split(" | ")[1] for row in table[2:]] == ["1", "all", "1", "all"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shards=0", "--rps=1", "--batch-ms=1"), "whole numbers above 0"),
        (("--shards=a", "--rps=1", "--batch-ms=1"), "whole numbers above 0"),
        (("--shards=4", "--batch-ms=50"), "--rps N"),
        (("--shards=4", "--rps=50"), "--batch-ms N"),
    ],
)
def test_a_load_that_is_not_one_is_refused(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output

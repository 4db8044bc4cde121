"""The table of measured sizes."""

from __future__ import annotations

import pytest

from batching.capacity.processes import UnitCosts
from tests.benchmarks.load import Load
from tests.benchmarks.scaling import Window, fitting, size_of, table, unit_costs


def _window(rps: float, web_s: float, redis_s: float) -> Window:
    spent = {"web": web_s, "redis": redis_s, "worker": 0.1, "executor": 0.05, "ops": 9.0}
    return Window(Load(rps, 1, 1, 1, 10_000, 0, 0), spent)


def test_costs_are_lower_quartiles_as_other_work_only_adds_to_them() -> None:
    found = size_of(1, [_window(9000 + n, 0.5 + n / 10, 0.2) for n in (3, 0, 1, 2)])
    assert unit_costs(found) == UnitCosts(60.0, 20.0, 10.0, 5.0)


def test_redis_is_one_and_the_others_share_their_work() -> None:
    found = size_of(4, [_window(40_000, 0.5, 0.24)])
    assert found.busy == {
        "web": pytest.approx(0.5),
        "redis": pytest.approx(0.96),
        "worker": pytest.approx(0.1),
        "executor": pytest.approx(0.05),
    }
    assert found.limit == "redis"
    assert table([found]).splitlines()[-1] == "| 4, 4 | 40,000 | 50%, 50.0 | 96%, 24.0 | 10%, 10.0 | 5%, 5.0 | redis |"


def test_where_no_process_is_busy_all_the_time_the_cores_are_the_limit() -> None:
    assert size_of(1, [_window(10_000, 0.7, 0.2)]).limit == "cores"


@pytest.mark.parametrize(
    ("cores", "sizes"), [(1, [1]), (2, [1]), (3, [1]), (6, [1, 2]), (12, [1, 2, 4]), (17, [1, 2, 4, 8])]
)
def test_sizes_have_a_core_for_each_busy_process(cores: int, sizes: list[int]) -> None:
    assert fitting(cores) == sizes

"""A model with `batch_sizes` in a real child process: warmed up before it is ready, and run with these sizes only."""

from __future__ import annotations

from batching.request import Failed
from tests.integration import executors
from tests.integration.executors import Start, run

# Fixtures.
build, start = executors.build, executors.start

SHAPED = "tests.fakes.shaped_models:Shaped"


def test_every_size_is_warmed_up_and_no_other_reaches_the_model(start: Start) -> None:
    executor = start(SHAPED, batch_sizes=(1, 4), max_batch_size=4, warmup_input="warm")
    assert run(executor, "a") == [["a", [4, 1, 1]]]
    assert run(executor, "b", "c") == [["b", [4, 1, 1, 4]], ["c", [4, 1, 1, 4]]]
    one, culprit, *_ = run(executor, "d", "refused", "e")
    assert isinstance(culprit, Failed)
    assert set(one[1]) == {1, 4}


def test_without_warm_up_the_log_says_so(start: Start, capfd: object) -> None:
    executor = start(SHAPED, batch_sizes=(1, 4), max_batch_size=4)
    assert run(executor, "a") == [["a", [1]]]
    assert "batch_sizes are not warmed up" in capfd.readouterr().err  # type: ignore[attr-defined]

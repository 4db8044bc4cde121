"""The spare of an executor: which process takes the place of one that has ended."""

from __future__ import annotations

from typing import cast

from config.settings import ModelSettings
from workers.executor.process import ChildProcess
from workers.executor.spare import Spare

MODEL = ModelSettings(name="m", source="echo", spare=True)


class Child:
    """A process with its model loaded."""

    pid = 1
    started_at = 0.0
    gone = closed = False

    def look(self, timeout_s: float) -> object:
        return self

    def reset_oom_evidence(self) -> None:
        pass

    def bury(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def ready(child: Child) -> Spare:
    spare = Spare("m/0", lambda model: cast("ChildProcess", child), lambda seconds: None)
    for _ in ("start", "see that it is loaded"):
        spare.tend(MODEL)
    assert spare.pid == child.pid
    return spare


def test_a_spare_is_taken_once() -> None:
    child = Child()
    spare = ready(child)
    assert spare.take(MODEL) is child  # type: ignore[comparison-overlap]
    assert spare.take(MODEL) is None
    assert not child.closed


def test_a_spare_that_died_together_with_the_process_before_it_is_not_taken() -> None:
    """Its death would count as a start that failed: an error, a pause, and only then a load."""
    child = Child()
    spare = ready(child)
    child.gone = True
    assert spare.take(MODEL) is None
    assert child.closed

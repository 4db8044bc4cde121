"""Runs the scenarios of `tests/gevent_scenarios`, from a process that gevent has not patched."""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.shards import ON_CLUSTER, SHARDS, cluster_beside, on_one_server
from tests.waiting import PATIENCE_S

_ROOT = Path(__file__).parents[1]
# As patient as a wait of a scenario, which says more.
_LONGEST_S = PATIENCE_S + 60.0
_EACH_SHARD = "each shard has a queue with that limit"
_OF_ONE_SHARD = {
    "without_the_setting_it_is_celerys_own": "Celery's own backend knows of no shards",
    "a_full_queue_refuses_at_once": _EACH_SHARD,
    "who_was_refused_at_the_door_has_used_no_key": _EACH_SHARD,
    "what_is_not_queued_leaves_no_payload": _EACH_SHARD,
}
_A_LINK = "the link to one server is broken; those of a cluster are in test_cluster.py"
_ON_ONE_SERVER = {
    "a_flush_is_not_queued_twice_when_its_reply_got_lost": _A_LINK,
    "a_subscription_that_went_dead_is_replaced_within_seconds": _A_LINK,
    "a_result_of_a_frontends_is_waited_for": "Celery's backends find the results of plain clients alone",
    "get_raises_what_the_task_raised": "what a plain client has sent is cancelled by Celery's own command",
}


class GeventRunner:
    """The patched process; it forks for each scenario."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gevent_scenarios"],
            cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            assert self._process.wait(PATIENCE_S) == 0

    def run(self, url: str, module: ModuleType, scenario: str) -> str:
        """Run a scenario and return its output; it fails as the scenario fails."""
        output = self._folder / f"{scenario}.txt"
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        beside = cluster_beside(url) if ON_CLUSTER else url
        process.stdin.write(f"{url} {beside} {module.__name__.rpartition('.')[2]} {scenario} {output}\n".encode())
        # Without a buffer, which might have the second line too: the wait for that would be in vain.
        pid = int(process.stdout.readline())
        if not select.select([process.stdout], [], [], _LONGEST_S)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        status = int(process.stdout.readline())
        said = output.read_text()
        # An error in a greenlet that nobody joins is only reported there.
        if status or "Traceback" in said:
            pytest.fail(f"{scenario} ended with {status}:\n{said}", pytrace=False)
        return said


def scenarios(module: ModuleType) -> pytest.MarkDecorator:
    """Parametrize a test with every scenario of a module: each function of a `FrontendFixture`."""
    names = [
        name
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and [each.annotation for each in inspect.signature(function).parameters.values()] == ["FrontendFixture"]
    ]
    assert names
    return pytest.mark.parametrize("scenario", [pytest.param(name, marks=_marks(name)) for name in names])


def _marks(scenario: str) -> list[pytest.MarkDecorator]:
    marks = []
    if why := _OF_ONE_SHARD.get(scenario):
        marks.append(pytest.mark.skipif(SHARDS > 1, reason=why))
    if why := _ON_ONE_SERVER.get(scenario):
        marks.append(on_one_server(why))
    return marks

"""The cores of the load generator, and the descriptors of everybody."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from tests.benchmarks import cores
from tests.benchmarks.cores import split, too_many
from tests.benchmarks.load import run_wrk
from tests.benchmarks.processes import Processes
from tests.benchmarks.shapes import input_output

_ALLOWED = "grep Cpus_allowed_list /proc/self/status"


@pytest.mark.parametrize("count", [1, 2])
def test_two_cores_are_shared_with_the_client(count: int) -> None:
    assert split(range(count)) == cores.Cores(tuple(range(count)), tuple(range(count)))
    assert not split(range(count)).pinned


@pytest.mark.parametrize(("count", "clients"), [(3, 1), (4, 1), (7, 1), (8, 2), (16, 4), (64, 8)])
def test_on_more_cores_the_client_has_a_quarter_of_its_own(count: int, clients: int) -> None:
    found = split(range(count))
    assert found.pinned
    assert len(found.client) == clients
    assert sorted(found.system + found.client) == list(range(count))


def test_only_cores_that_this_process_may_use_are_given_out() -> None:
    assert split([9, 4, 6]) == cores.Cores((4, 6), (9,))


def test_what_starts_on_other_cores_leaves_this_thread_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    with cores.on([one]):
        assert os.sched_getaffinity(0) == {one}
    assert os.sched_getaffinity(0) == before


def test_connections_need_descriptors_in_each_process() -> None:
    why = too_many(1000, 1024)
    assert why is not None
    assert "1,000 connections need 1,300 file descriptors" in why
    assert "`ulimit -Hn` is 1,024" in why
    assert too_many(1000, 1300) is None
    assert too_many(1000, resource.RLIM_INFINITY) is None


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> cores.Cores:
    """One core for the systems and one for the client, where there are two."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("needs two cores")
    found = cores.Cores((usable[0],), (usable[1],))
    monkeypatch.setattr(cores, "of_this_machine", lambda: found)
    return found


def test_systems_and_their_children_run_on_the_cores_of_the_systems(halves: cores.Cores, tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("child", ["sh", "-c", _ALLOWED], cwd=tmp_path, env=dict(os.environ))
    try:
        while not processes.dead():
            os.sched_yield()
        assert processes.log_path("child").read_text().split()[-1] == str(halves.system[0])
    finally:
        processes.stop()


def test_wrk_runs_on_the_cores_of_the_client(halves: cores.Cores, tmp_path: Path) -> None:
    wrk = tmp_path / "wrk"
    counts = dict.fromkeys(("requests", "p50_us", "p99_us", "max_us"), 1)
    errors = dict.fromkeys(("connect", "read", "write", "status", "timeout"), 0)
    summary = json.dumps({"duration_us": 1_000_000, **counts, **errors}, separators=(",", ":"))
    wrk.write_text(f"#!/bin/sh\n({_ALLOWED}) > {tmp_path}/allowed\necho '{summary}'\n")
    wrk.chmod(0o755)

    assert run_wrk(str(wrk), "http://127.0.0.1:1", input_output("/"), connections=1, duration_s=1).rps == 1.0
    assert (tmp_path / "allowed").read_text().split()[-1] == str(halves.client[0])

"""The supervisor with real processes: what is started together, kept running, stopped in order, and never left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis

from tests.shards import inherited_environment
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0


class DummyUp:
    """`tests/fakes/dummy_up.py` as a process, and what can be seen of it from outside."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._process: subprocess.Popen[str] | None = None
        self.output = state_dir.parent / "output.txt"
        self._seen: dict[int, psutil.Process] = {}

    def start(self, *options: str) -> DummyUp:
        command = [sys.executable, "-m", "tests.fakes.dummy_up", str(self.state_dir), *options]
        with self.output.open("w") as output:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
        return self

    def adopt(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def wait_ready(self) -> DummyUp:
        wait_until(lambda: "ready" in self.text().splitlines(), self.text)
        self.look()
        return self

    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def rows(self) -> dict[str, dict[str, object]]:
        document = json.loads((self.state_dir / "up.json").read_text())
        return {row["role"]: row for row in document["processes"]}

    def pid(self, role: str) -> int:
        return int(str(self.rows()[role]["pid"]))

    def record(self) -> list[str]:
        """Lines of `<name> <what>`, in the order in which it happened."""
        return [line.rsplit(" ", 1)[0] for line in (self.state_dir / "record.txt").read_text().splitlines()]

    def look(self) -> list[psutil.Process]:
        """Every process below `up` now; they are remembered for `left`."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        self._seen |= {each.pid: each for each in found}
        return found

    def left(self) -> list[psutil.Process]:
        """Those ever seen that still run."""
        return [each for each in self._seen.values() if _runs(each)]

    def wait_for_none(self) -> None:
        """Until none is left: what was killed runs until the kernel has a moment for it."""
        wait_until(lambda: self.left() == [], self.left)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[DummyUp]:
    each = DummyUp(tmp_path / "var")
    yield each
    if each._process is not None and each.process.poll() is None:
        each.look()
        each.process.kill()
        each.process.wait()
    for process in each.left():
        process.kill()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or not _runs(psutil.Process(pid))


def test_stops_the_frontend_first_and_valkey_last(up: DummyUp) -> None:
    drained = up.state_dir.parent / "drained"
    up.start(f"web=--stop-when {drained}").wait_ready()
    redis = up.pid("redis")
    up.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "web asked" in up.record())
    wait_until(lambda: up.rows()["web"]["state"] == "stopping", what="that is shown")
    assert up.rows()["worker"]["state"] == "running"
    drained.touch()

    assert up.process.wait(PATIENCE_S) == 0

    assert [line for line in up.record() if "started" not in line] == [
        "web asked",
        "web ended",
        "worker1 asked",
        "worker1 ended",
        "ops asked",
        "ops ended",
        "flower asked",
        "flower ended",
    ]
    # Valkey writes nothing into the record.
    assert up.text().index("flower: stopped") < up.text().index("valkey: stopped")
    assert _gone(redis)
    up.wait_for_none()


def test_a_worker_that_dies_while_the_frontend_drains_is_started_again(up: DummyUp) -> None:
    drained = up.state_dir.parent / "drained"
    up.start(f"web=--stop-when {drained}").wait_ready()
    worker = up.pid("worker")
    up.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "web asked" in up.record())

    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: up.record().count("worker1 started") == 2, up.text)
    drained.touch()

    assert up.process.wait(PATIENCE_S) == 0
    record = up.record()
    assert record.index("web ended") < record.index("worker1 asked")


def test_what_dies_is_started_again_and_takes_its_own_children_along(up: DummyUp) -> None:
    up.start().wait_ready()
    before = up.pid("worker")
    (grandchild,) = psutil.Process(before).children()

    os.kill(before, signal.SIGKILL)
    wait_until(lambda: up.rows()["worker"]["restarts"] == 1 and up.rows()["worker"]["state"] == "running", up.text)

    assert up.pid("worker") != before
    wait_until(lambda: not _runs(grandchild))
    assert "worker1 killed by SIGKILL" in up.text()
    assert up.rows()["web"]["restarts"] == 0


def test_valkey_comes_back_on_its_port_with_what_it_held(up: DummyUp) -> None:
    up.start().wait_ready()
    url = json.loads((up.state_dir / "up.json").read_text())["redis_url"]
    with Redis.from_url(url) as client:
        client.set("accepted", "yes")
        assert client.execute_command("WAITAOF", 1, 0, 10_000) == [1, 0]
    os.kill(up.pid("redis"), signal.SIGKILL)
    wait_until(lambda: up.rows()["redis"]["restarts"] == 1 and up.rows()["redis"]["state"] == "running", up.text)

    with Redis.from_url(url) as client:
        assert client.get("accepted") == b"yes"


def test_the_second_signal_kills_what_still_drains(up: DummyUp) -> None:
    up.start("worker1=--deaf").wait_ready()
    up.process.send_signal(signal.SIGINT)
    wait_until(lambda: "worker1 asked" in up.record())

    up.process.send_signal(signal.SIGINT)

    # Its own stop timeout is a minute.
    assert up.process.wait(20) == 1
    assert "killed the processes that had not finished" in up.text()
    up.wait_for_none()


def test_kill_9_of_the_supervisor_leaves_nothing(up: DummyUp) -> None:
    up.start("worker1=--deaf").wait_ready()
    assert len(up.look()) == 1 + 5 + 4  # the reaper, the children, and the children of the stand-ins

    os.killpg(up.process.pid, signal.SIGKILL)

    up.wait_for_none()


def test_kill_9_of_the_supervisor_leaves_nothing_while_children_start(up: DummyUp) -> None:
    up.start()
    wait_until(lambda: (up.state_dir / "up.json").exists() and up.pid("redis") > 0 and len(up.look()) >= 3)

    up.process.kill()

    up.wait_for_none()


def test_a_guardian_that_was_killed_is_replaced(up: DummyUp) -> None:
    up.start("worker1=--deaf").wait_ready()
    (reaper,) = [each for each in up.look() if "reaper.py" in " ".join(each.cmdline())]
    reaper.kill()
    wait_until(
        lambda: any("reaper.py" in " ".join(each.cmdline()) for each in up.look() if each != reaper and _runs(each))
    )

    up.process.kill()

    up.wait_for_none()


def test_one_up_per_state_folder(up: DummyUp) -> None:
    up.start().wait_ready()

    second = subprocess.run(
        [sys.executable, "-m", "tests.fakes.dummy_up", str(up.state_dir)],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip

    assert second.returncode == 1
    assert f"another `up` (pid {up.process.pid})" in second.stderr
    assert up.rows()["worker"]["restarts"] == 0


def test_gives_up_on_a_child_that_cannot_start_and_shows_why(up: DummyUp) -> None:
    up.start("worker1=--die")

    assert up.process.wait(PATIENCE_S) == 1

    assert "worker1 | RuntimeError: this child cannot live" in up.text()
    assert "Error: worker1 could not be started" in up.text()
    assert "web ended" in up.record()


def test_shows_only_warnings_and_worse_of_what_children_say(up: DummyUp) -> None:
    up.start("ops=--say '2026-01-01 00:00:00 ERROR   tasks: lost'", "web=--say 'INFO all is well'").wait_ready()

    wait_until(lambda: "ops | 2026-01-01 00:00:00 ERROR   tasks: lost" in up.text(), up.text)
    assert "all is well" not in up.text()
    assert "all is well" in (up.state_dir / "log" / "web.log").read_text()


def test_a_reader_that_goes_away_ends_nothing(up: DummyUp) -> None:
    """As in `up | head`."""
    command = [sys.executable, "-m", "tests.fakes.dummy_up", str(up.state_dir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        up.adopt(process)
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            pass
        up.look()
        process.stdout.close()
        os.kill(up.pid("worker"), signal.SIGKILL)
        wait_until(lambda: up.rows()["worker"]["restarts"] == 1 and up.rows()["worker"]["state"] == "running")

        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert "flower ended" in up.record()
    up.wait_for_none()


def test_hup_is_for_the_frontend_while_there_is_a_terminal(up: DummyUp) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "tests.fakes.dummy_up", str(up.state_dir)]
    with up.output.open("w") as output, subprocess.Popen(
        command, cwd=ROOT, stdin=theirs, stdout=output, stderr=output, text=True, start_new_session=True
    ) as process:  # fmt: skip
        up.adopt(process)
        os.close(theirs)
        up.wait_ready()
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "web reloaded" in up.record())
        assert {row["state"] for row in up.rows().values()} == {"running"}
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE_S) == 0
    assert [each for each in up.record() if "reloaded" in each] == ["web reloaded"]
    up.wait_for_none()


def test_status_tells_what_runs(up: DummyUp) -> None:
    up.start().wait_ready()

    running = _status(up.state_dir, "--json")
    document = json.loads(running.stdout)
    assert running.returncode == 0
    assert {row["role"] for row in document["processes"]} == {"redis", "web", "worker", "ops", "flower"}
    assert all(row["state"] == "running" and row["restarts"] == 0 for row in document["processes"])
    for name in ("redis_url", "broker_url"):
        with Redis.from_url(document[name]) as client:
            assert client.ping()
    assert str(up.pid("worker")) in _status(up.state_dir).stdout

    up.process.kill()
    up.process.wait()
    after_kill = _status(up.state_dir, "--json")
    assert (after_kill.returncode, json.loads(after_kill.stdout)["processes"]) == (1, [])


def _status(state_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = inherited_environment()
    return subprocess.run(
        [sys.executable, "manage.py", "status", *options],
        cwd=ROOT, env=environment | {"BUNCH_STATE_DIR": str(state_dir)},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip

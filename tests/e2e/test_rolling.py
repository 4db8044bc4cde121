"""Restarts under load: whoever has sent a request in full is answered."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.supervisor.ports import free_port
from config.settings import Settings
from tests.e2e.stack import PATIENT, Stack
from tests.integration.http_server_harness import Client, Gone, post
from tests.waiting import PATIENCE_S, wait_until

MODELS = """\
[models.echo]
source = "workers.models.echo:Echo"

[models.simulated]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 150, item_ms = 0 }
"""
CALLERS = 12


class Load:
    """Callers on keep-alive connections, each with one request after the other, until told to stop."""

    def __init__(self, port: int) -> None:
        # Where new connections go.
        self.port = port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(CALLERS)]
        # The port does not answer while the one process that listens on it is replaced.
        self.refused = 0
        # Sent in full and never answered: what must not be.
        self.lost: list[str] = []
        # Connected between the last accept and the close of the port: nobody has ever read from these.
        self.unaccepted = 0
        self.codes: Counter[int] = Counter()
        self.closing = 0
        self.phase = "before"

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()

    def answered(self, more: int) -> None:
        """Return after so many more answers."""
        enough = self.codes.total() + more
        wait_until(lambda: self.codes.total() >= enough, what="the load goes on")

    def _call(self, number: int) -> None:
        model = ("echo", "simulated")[number % 2]
        client: Client | None = None
        answers = 0
        while not self._stop.is_set():
            if client is None:
                try:
                    client = Client(self.port)
                except (ConnectionRefusedError, ConnectionResetError):
                    self.refused += 1
                    time.sleep(0.02)
                    continue
                answers = 0
            client = self._ask(client, model, answers)
            answers += 1
        if client is not None:
            client.close()

    def _ask(self, client: Client, model: str, answers: int) -> Client | None:
        body = b'{"input": 1, "model": "%b"}' % model.encode()
        try:
            client.send(post("/v1/inference", body, "Content-Type: application/json"))
            answer = client.answer()
        except (Gone, OSError, ValueError, AssertionError) as error:
            if isinstance(error, ConnectionResetError) and answers == 0 and self.phase in {"web", "all"}:
                self.unaccepted += 1
            else:
                self.lost.append(f"{model}, in phase {self.phase}, after {answers} answers: {error!r}")
            client.close()
            return None
        self.codes[answer.status] += 1
        if answer.headers.get("connection") != "close":
            return client
        self.closing += 1
        client.close()
        return None


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path, MODELS)
    try:
        # Callers who wait for long enough, on whatever machine: what is lost is lost by the restarts.
        yield stack.start("--workers=2", "--web-workers=2", "--no-flower", admission="off", **PATIENT)
    finally:
        stack.kill()


@pytest.mark.chaos
@pytest.mark.slow
def test_a_rolling_restart_loses_no_request(own: Stack) -> None:
    with Load(own.port) as load:
        load.answered(200)
        load.phase = "workers"
        for pid in own.pids("worker"):
            os.kill(pid, signal.SIGTERM)
            replaced(own, "worker", pid)
            load.answered(100)
        # gunicorn's own way: new processes before the old ones go, and the port answers all the time.
        before = {each.pid for each in own.frontends()}
        load.phase = "reload"
        os.kill(own.pids("web")[0], signal.SIGHUP)
        wait_until(lambda: not before & {each.pid for each in own.frontends()}, what="both frontends are new")
        load.answered(100)
        assert load.refused == 0
        assert set(load.codes) == {200}
        # The whole role at once: nobody is cut off, though the port is away for a moment.
        (web,) = own.pids("web")
        load.phase = "web"
        os.kill(web, signal.SIGTERM)
        replaced(own, "web", web)
        load.answered(100)
        assert set(load.codes) == {200}
        load.phase = "all"
        own.terminate()
        wait_until(lambda: own.process.poll() is not None, what="all have stopped")
    assert load.lost == []
    assert load.unaccepted <= 2
    # What was said before connections were closed, and by nothing but that.
    assert load.closing > CALLERS
    assert set(load.codes) <= {200, 503}
    assert own.process.returncode == 0, own.last_logs()
    assert "ERROR" not in own.logs(), own.last_logs()


@pytest.mark.chaos
@pytest.mark.slow
def test_a_pod_that_first_leaves_its_service_loses_nothing(own: Stack, tmp_path: Path) -> None:
    """The kubelet's order: out of the Service, `preStop`, TERM, and KILL only after the grace period."""
    port = free_port()
    pod = own.spawn("web", http_port=port, state_dir=tmp_path / "pod", redis_url=own.redis_url, web_workers=1)
    try:
        wait_until(lambda: is_ready(port), what="the pod is ready")
        with Load(port) as load:
            load.answered(100)
            # Open connections stay; during `preStop` those that were made at the last moment are accepted.
            load.port = own.port
            load.answered(100)
            load.phase = "web"
            pod.terminate()
            assert pod.wait(Settings().graceful_timeout_s) == 0
            load.answered(100)
    finally:
        pod.kill()
        pod.wait()
    assert (load.lost, load.refused, load.unaccepted) == ([], 0, 0)
    assert set(load.codes) == {200}
    # Each connection of the pod was told to go.
    assert load.closing >= CALLERS


def is_ready(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def replaced(stack: Stack, role: str, pid: int) -> None:
    wait_until(lambda: not psutil.pid_exists(pid), what=f"{role} {pid} is gone")
    wait_until(lambda: pid not in stack.pids(role) and stack.all_run(), what=f"another {role} runs")
    assert "exited with 0" in stack.logs(), stack.last_logs()


def sums(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every counter and every bucket that a scrape of whichever frontend answers shows."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            # A process's own begin anew with the next process.
            if family.type in {"counter", "histogram"} and not family.name.startswith("bunch_process_")
            for sample in family.samples
        }


@pytest.mark.chaos
@pytest.mark.slow
def test_counters_only_grow_while_processes_are_replaced(own: Stack) -> None:
    stop = threading.Event()
    shrunk: list[str] = []
    seen: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def scrape() -> None:
        while not stop.is_set():
            # The port may be between two listeners.
            with contextlib.suppress(OSError):
                now = sums(own.port)
                shrunk.extend(f"{key}: {seen[key]} → {now.get(key)}" for key in seen if now.get(key, -1) < seen[key])
                seen.update(now)
            time.sleep(0.05)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        with Load(own.port) as load:
            load.answered(200)
            # A web process ends after its requests in the way that gunicorn recycles one, a worker dies outright.
            os.kill(own.frontends()[0].pid, signal.SIGTERM)
            load.phase = "web"
            load.answered(200)
            victim = own.pids("worker")[0]
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: victim not in own.pids("worker") and own.all_run(), what="another worker runs")
            load.answered(200)
    finally:
        stop.set()
        scraper.join()
    assert not shrunk

    def counted() -> float:
        return sum(value for (name, _), value in sums(own.port).items() if name == "bunch_requests_total")

    # What a worker had not flushed when it was killed is lost; a frontend that is told to stop loses nothing.
    wait_until(lambda: counted() >= load.codes.total(), what="every answer is counted")

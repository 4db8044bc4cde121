"""Benchmarks the web server alone: our gunicorn worker and gunicorn's two gevent workers, one process each, in one run.

    python -m tests.benchmarks.http_server [--rounds 3] [--duration 4] [--connections 64] [--json]

A bare WSGI function and a Flask view answer `{}`; `wrk` runs with one thread. The rounds go through all servers in
turn, so that a machine that is busy for a while slows them all. The worker's CPU per request stays comparable even
then.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from flask import Flask, Response

from tests.benchmarks.load import ensure_wrk
from tests.benchmarks.processes import Processes, free_port

_ROOT = Path(__file__).parents[2]
_WORKERS = ("gevent", "gevent_pywsgi", "webapp.server.Worker")
_APPS = ("bare", "flask_app")
_START_LIMIT_S = 30.0
DONE = re.compile(r"(\d+) requests in ([\d.]+)(m?s|m)")
_ERRORS = re.compile(r"Socket errors: (.*)|Non-2xx or 3xx responses: (\d+)")


def bare(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", "2")])
    return [b"{}"]


flask_app = Flask(__name__)


@flask_app.get("/")
def _index() -> Response:
    return Response(b"{}", mimetype="application/json")


AnyRow = TypeVar("AnyRow")


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds."""

    app: str
    worker: str
    rps: float
    cpu_us_per_request: float
    errors: int


def measure(worker: str, app: str, wrk: str, *, connections: int, duration_s: int) -> tuple[float, float, int]:
    """(requests/s, worker's CPU seconds per request, rounds with errors) of one server started for it."""
    port = free_port()
    command = [
        sys.executable, "-m", "gunicorn", "--worker-class", worker, "--bind", f"127.0.0.1:{port}",
        "--keep-alive", "75", "--no-control-socket", "--log-level", "warning", f"tests.benchmarks.http_server:{app}",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-http-") as folder:
        processes = Processes(Path(folder))
        processes.start("gunicorn", command, cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)})
        try:
            url = f"http://127.0.0.1:{port}/"
            _wait(url, processes)
            before = cpu_s(processes)
            output = subprocess.run(
                [wrk, "-t1", f"-c{connections}", f"-d{duration_s}s", url], capture_output=True, text=True, check=True
            ).stdout
            used_s = cpu_s(processes) - before
        finally:
            processes.stop()
    done = DONE.search(output)
    if done is None:
        raise RuntimeError(f"wrk printed no summary:\n{output}")
    requests = int(done[1])
    rps = re.search(r"Requests/sec:\s+([\d.]+)", output)
    return float(rps[1]) if rps else 0.0, used_s / requests, int(bool(_ERRORS.search(output)))


def _wait(url: str, processes: Processes) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            if processes.dead() or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not answer:\n{processes.log_tail()}") from None
            time.sleep(0.05)


def cpu_s(processes: Processes) -> float:
    times = [process.cpu_times() for process in processes.marked()]
    return float(sum(each.user + each.system for each in times))


def run(*, rounds: int, duration_s: int, connections: int) -> list[Row]:
    wrk = ensure_wrk()
    pairs = [(app, worker) for app in _APPS for worker in _WORKERS]
    measured: dict[tuple[str, str], list[tuple[float, float, int]]] = {pair: [] for pair in pairs}
    for number in range(rounds):
        for app, worker in pairs:
            result = measure(worker, app, wrk, connections=connections, duration_s=duration_s)
            measured[app, worker].append(result)
            print(f"round {number + 1}: {app:10} {worker:22} {result[0]:8.0f}/s", file=sys.stderr)
    return [
        Row(
            app=app,
            worker=worker,
            rps=statistics.median(result[0] for result in results),
            cpu_us_per_request=statistics.median(result[1] for result in results) * 1e6,
            errors=sum(result[2] for result in results),
        )
        for (app, worker), results in measured.items()
    ]


def rows_asked_for(doc: str | None, run: Callable[..., list[AnyRow]]) -> list[AnyRow]:
    """The rows that `run` measures as the command line asks for; none once they were printed as JSON."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=int, default=4, help="seconds of load for each server, kind and round")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = run(rounds=arguments.rounds, duration_s=arguments.duration, connections=arguments.connections)
    if not arguments.json:
        return rows
    print(json.dumps([asdict(row) for row in rows]))  # type: ignore[call-overload]
    return []


def main() -> None:
    rows = rows_asked_for(__doc__, run)
    if not rows:
        return
    print(f"{'application':12} {'worker':22} {'requests/s':>10} {'CPU µs each':>12} {'errors':>7}")
    for row in rows:
        print(f"{row.app:12} {row.worker:22} {row.rps:10.0f} {row.cpu_us_per_request:12.1f} {row.errors:7}")


if __name__ == "__main__":
    main()

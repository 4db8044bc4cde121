"""Benchmarks TLS at the front: requests and connections a second of the web server alone, with and without, in one run.

    python -m tests.benchmarks.tls [--rounds 3] [--duration 4] [--connections 64] [--json]

One process of our gunicorn worker answers `{}`; `wrk` runs with one thread and resumes no session. `kept` sends its
requests on kept connections, `new` each on a connection, and so with a handshake, of its own. The rounds go through
all servers in turn; the worker's CPU stays comparable where the machine has other work.
"""

from __future__ import annotations

import os
import re
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.http_server import DONE, cpu_s, rows_asked_for
from tests.benchmarks.load import ensure_wrk
from tests.benchmarks.processes import Processes, free_port
from tests.fakes.tls import Authority

_ROOT = Path(__file__).parents[2]
_START_LIMIT_S = 30.0
# The name of a server, and the bits of its RSA key; 0: an elliptic one, None: no TLS.
_SERVERS = {"none": None, "ECDSA P-256": 0, "RSA 2048": 2048}
_KINDS = {"kept": (), "new": ("-H", "Connection: close")}
_CONFIG = """\
worker_class = "webapp.server.Worker"
bind = "127.0.0.1:{port}"
keepalive = 75
backlog = 2048
control_socket_disable = True
loglevel = "warning"

from config.front_tls import server_context
from config.schema import Settings

_tls = server_context(Settings(tls_cert={certificate!r}, tls_key={key!r}))


def post_fork(server, worker):
    worker.tls = _tls
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds."""

    tls: str
    connections: str
    per_second: float
    cpu_us_each: float


def measure(tls: str, wrk: str, *, connections: int, duration_s: int) -> dict[str, tuple[float, float]]:
    """(answers/s, worker's CPU seconds each) for each kind of connection, of one server started for it."""
    port, bits = free_port(), _SERVERS[tls]
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as folder:
        files = ("", "") if bits is None else Authority(Path(folder)).certificate("127.0.0.1", rsa_bits=bits)
        config = Path(folder) / "gunicorn.py"
        config.write_text(_CONFIG.format(port=port, certificate=str(files[0]), key=str(files[1])))
        command = [sys.executable, "-m", "gunicorn", "-c", str(config), "tests.benchmarks.http_server:bare"]
        processes = Processes(Path(folder))
        processes.start("gunicorn", command, cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)})
        found = {}
        try:
            url = f"http{'' if bits is None else 's'}://127.0.0.1:{port}/"
            _wait(url, processes)
            for kind, header in _KINDS.items():
                before = cpu_s(processes)
                run = [wrk, "-t1", f"-c{connections}", f"-d{duration_s}s", *header, url]
                output = subprocess.run(run, capture_output=True, text=True, check=True).stdout
                done, rps = DONE.search(output), re.search(r"Requests/sec:\s+([\d.]+)", output)
                if done is None or rps is None or int(done[1]) == 0:
                    raise RuntimeError(f"wrk got no answers:\n{output}")
                found[kind] = float(rps[1]), (cpu_s(processes) - before) / int(done[1])
        finally:
            processes.stop()
    return found


def _wait(url: str, processes: Processes) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1, context=context):
                return
        except (urllib.error.URLError, OSError):
            if processes.dead() or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not answer:\n{processes.log_tail()}") from None
            time.sleep(0.05)


def run(*, rounds: int, duration_s: int, connections: int) -> list[Row]:
    wrk = ensure_wrk()
    measured: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(rounds):
        for tls in _SERVERS:
            for kind, result in measure(tls, wrk, connections=connections, duration_s=duration_s).items():
                measured.setdefault((tls, kind), []).append(result)
                print(f"round {number + 1}: {tls:12} {kind:5} {result[0]:8.0f}/s", file=sys.stderr)
    return [
        Row(tls, kind, statistics.median(each[0] for each in results), statistics.median(e[1] for e in results) * 1e6)
        for (tls, kind), results in sorted(measured.items(), key=lambda item: list(_KINDS).index(item[0][1]))
    ]


def main() -> None:
    rows = rows_asked_for(__doc__, run)
    if not rows:
        return
    print(f"{'connections':12} {'TLS':12} {'a second':>10} {'CPU µs each':>12}")
    for row in rows:
        print(f"{row.connections:12} {row.tls:12} {row.per_second:10.0f} {row.cpu_us_each:12.1f}")


if __name__ == "__main__":
    main()

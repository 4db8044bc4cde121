"""Benchmarks large inputs: 5 MB from 16 callers, by every way that they can go.

    python -m tests.benchmarks.large [--rounds 3] [--duration 5] [--connections 16] [--only a,b] [--no-copies] [--json]

| system        | the input goes                                                                                     |
|---------------|----------------------------------------------------------------------------------------------------|
| `plain`       | nowhere: one gevent worker of gunicorn reads the body, and answers                                 |
| `base64`      | as base64 in JSON, through the queue: what there was before bodies could be bytes                  |
| `inline`      | as a raw body, as base64 through the queue (`BUNCH_INLINE_BYTES` above it)                         |
| `claim check` | as a raw body, beside the queue, as between two machines                                           |
| `unlogged`    | the same, with `BUNCH_DURABILITY=memory`                                                           |
| `same host`   | in shared memory: the default on one machine                                                       |
| `views`       | the same, to a model that takes views (`accepts_views`), and not copies                            |
| `bentoml`     | as multipart, its way for files; `litserve` likewise                                               |

The model looks at three bytes. All have one web process and one model. `MB in Redis` is the most that Redis held beyond
what it had before, `MB in the log` what a request left in its log on disk, `CPU ms` that of all processes of a system
for a request. The rounds go through all systems in turn; figures are medians. `copies` are those of a request's bytes,
counted (`tests.benchmarks.copies`) in a round of its own, since that takes time: in memory + to and from the kernel.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import psutil
from redis import Redis

from tests.benchmarks.bunch_system import ROOT, Bunch
from tests.benchmarks.copies import Copies, counting
from tests.benchmarks.system import Model, Rival, System
from tests.benchmarks.uploads import Caller, Crowd, Upload
from tests.benchmarks.venvs import VenvFailedError
from tests.benchmarks.verify import NotReadyError

SIZE = 5_000_000
INPUT = b"\x89" + bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256 - 2) + b"\xff"
ANSWER = f"[{SIZE},137,255]"
_START_LIMIT_S = 120.0
_BOUNDARY = "a-boundary-that-is-in-no-body"
_CONFIG = """
[models.weigh]
source = "tests.benchmarks.weigh:{model}"
input_type = "bytes"
max_batch_size = 16
max_batch_bytes = 268435456
"""
# Neither the callers' patience nor a body's size is the limit.
_PATIENT = {
    "BUNCH_MAX_BODY_BYTES": "16777216",
    "BUNCH_REQUEST_TIMEOUT_MS": "60000",
    "BUNCH_QUEUE_TIMEOUT_MS": "60000",
    "BUNCH_ADMISSION": "off",
}


RAW = Upload("/v1/inference", "application/octet-stream", INPUT, ANSWER)
_AS_BASE64 = Upload(
    "/v1/inference", "application/json", b'{"input":{"$base64":"%b"}}' % base64.b64encode(INPUT), ANSWER
)


def multipart(path: str, name: str) -> Upload:
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="a.bin"\r\n'
    head += "Content-Type: application/octet-stream\r\n\r\n"
    body = head.encode() + INPUT + f"\r\n--{_BOUNDARY}--\r\n".encode()
    return Upload(path, f"multipart/form-data; boundary={_BOUNDARY}", body, ANSWER)


class BeforeBytes(Bunch):
    """Base64 within JSON, all of it through the queue."""

    name = "base64"
    upload = _AS_BASE64
    model = "Weigh"
    settings: ClassVar[dict[str, str]] = {"BUNCH_INLINE_BYTES": "268435456"}

    def launch(self, model: Model) -> None:
        self.launch_with(_CONFIG.format(model=self.model), _PATIENT | self.settings)


class Inline(BeforeBytes):
    name = "inline"
    upload = RAW


class ClaimCheck(Inline):
    name = "claim check"
    settings: ClassVar[dict[str, str]] = {"BUNCH_SHARED_MEMORY_BYTES": "0"}


class Unlogged(ClaimCheck):
    name = "unlogged"
    settings: ClassVar[dict[str, str]] = ClaimCheck.settings | {"BUNCH_DURABILITY": "memory"}


class SameHost(Inline):
    name = "same host"
    settings: ClassVar[dict[str, str]] = {}


class Views(SameHost):
    name = "views"
    model = "WeighViews"


class Plain(System):
    """A gevent worker of gunicorn that reads the body."""

    name = "plain"
    upload = Upload("/", "application/octet-stream", INPUT, ANSWER)

    def launch(self, model: Model) -> None:
        command = [sys.executable, "-m", "gunicorn", "--worker-class=gevent", f"--bind=127.0.0.1:{self.port}"]
        command += ["--keep-alive=75", "--log-level=warning", "tests.benchmarks.large:read_the_body"]
        self.processes.start("plain", command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def read_the_body(environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
    body = environ["wsgi.input"].read()
    answer = f"[{len(body)},{body[0]},{body[-1]}]".encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(answer)))])
    return [answer]


class LitServe(Rival):
    name = "litserve"
    upload = multipart("/predict", "file")

    @property
    def source(self) -> Path:
        return super().source.with_name("litserve_large")

    def launch(self, model: Model) -> None:
        self.run("server", self.python, str(self.source / "server.py"), env=self.env(model))


class BentoML(Rival):
    name = "bentoml"
    upload = multipart("/infer", "files")

    @property
    def source(self) -> Path:
        return super().source.with_name("bentoml_large")

    def launch(self, model: Model) -> None:
        env = self.env(model) | {"BENTOML_HOME": str(self.folder / "home"), "BENTOML_DO_NOT_TRACK": "True"}
        self.run(
            "server",
            *(self.python, "-m", "bentoml", "serve", "service:Weigh", "--working-dir", str(self.source)),
            *("--host", "127.0.0.1", "--port", str(self.port), "--quiet"),
            env=env,
        )


SYSTEMS = (Plain, BeforeBytes, Inline, ClaimCheck, Unlogged, SameHost, Views, BentoML, LitServe)


@dataclass(frozen=True, slots=True)
class Row:
    system: str
    rps: float
    p50_ms: float
    cpu_ms_each: float
    redis_mb: float | None = None
    log_mb_each: float | None = None
    errors: int = 0
    copied: tuple[float, ...] = ()


class Memory:
    """The most that Redis holds, looked at twenty times a second."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)
        self._ended = threading.Event()
        self._before = self.most_bytes = self._used()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _used(self) -> int:
        return int(self._redis.info("memory")["used_memory"])

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.most_bytes = max(self.most_bytes, self._used())

    def end(self) -> float:
        """Megabytes."""
        self._ended.set()
        self._thread.join()
        self._redis.close()
        return (self.most_bytes - self._before) / 1e6


def wait_until_it_answers(system: Any) -> None:
    until = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            caller = Caller(system.port, system.upload)
            if ANSWER in caller.send().replace(" ", ""):
                caller.close()
                return
            raise NotReadyError("a wrong answer")
        except OSError as error:
            if system.processes.dead() or time.monotonic() > until:
                raise NotReadyError(f"{system.name}: {error}\n{system.processes.log_tail()}") from error
            time.sleep(0.2)


def measure(system: Any, *, connections: int, duration_s: float, copies: Copies | None = None) -> Row:
    """Start a system, load it, and stop it."""
    system.open_run()
    try:
        system.launch("noop")
        wait_until_it_answers(system)
        Crowd(system.port, system.upload, connections).run(1.0)
        is_bunch = isinstance(system, Bunch)
        memory = Memory(system.redis_url()) if is_bunch else None
        log_before, cpu_before = _log_bytes(system), _cpu_s(system)
        copied_before = copies.bytes if copies is not None else ()
        crowd = Crowd(system.port, system.upload, connections)
        took_s = crowd.run(duration_s)
        count = max(1, len(crowd.latencies_s))
        cpu_s = _cpu_s(system) - cpu_before
        return Row(
            system.name,
            len(crowd.latencies_s) / took_s,
            statistics.median(crowd.latencies_s or [0.0]) * 1000,
            cpu_s / count * 1000,
            memory.end() if memory is not None else None,
            (_log_bytes(system) - log_before) / count / 1e6 if is_bunch else None,
            len(crowd.errors),
            tuple(
                (now - before) / count / SIZE
                for now, before in zip(copies.bytes if copies is not None else (), copied_before, strict=True)
            ),
        )
    finally:
        system.stop()


def _processes(system: System) -> list[psutil.Process]:
    """All of a system. Valkey has overwritten its mark, so it is found by its parent."""
    processes = {each.pid: each for each in system.processes.marked()}
    for each in tuple(processes.values()):
        with contextlib.suppress(psutil.Error):
            processes |= {child.pid: child for child in each.children(recursive=True)}
    return list(processes.values())


def _log_bytes(system: System) -> int:
    """What Valkey has written to files: its log may be replaced meanwhile, which another process does."""
    written = 0
    for each in _processes(system):
        with contextlib.suppress(psutil.Error):
            if "valkey" in each.name():
                written += each.io_counters().write_bytes
    return written


def _cpu_s(system: System) -> float:
    spent = 0.0
    for each in _processes(system):
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            spent += times.user + times.system
    return spent


def run(names: list[str], *, rounds: int, duration_s: int, connections: int, counts: bool = True) -> list[Row]:
    systems = [each for each in SYSTEMS if not names or each.name in names]
    rows: dict[str, list[Row]] = {}
    for number in range(rounds):
        for kind in systems:
            try:
                system = kind()
                system.prepare()
                row = measure(system, connections=connections, duration_s=duration_s)
            except (NotReadyError, VenvFailedError) as error:
                print(f"{kind.name}: {error}", file=sys.stderr)
                continue
            rows.setdefault(kind.name, []).append(row)
            print(f"round {number + 1}: {row}", file=sys.stderr)
    medians = {kind: _median(rows[kind.name]) for kind in systems if kind.name in rows}
    return [replace(row, copied=_copied(kind)) if counts else row for kind, row in medians.items()]


def _copied(kind: Any) -> tuple[float, ...]:
    """The copies of a request's bytes; empty where they cannot be counted."""
    try:
        with counting() as copies:
            return measure(kind(), connections=4, duration_s=2.0, copies=copies).copied
    except (NotReadyError, subprocess.CalledProcessError) as error:
        print(f"{kind.name}: copies are not counted: {error}", file=sys.stderr)
        return ()


def _median(rows: list[Row]) -> Row:
    fields: dict[str, Any] = {}
    for name in ("rps", "p50_ms", "cpu_ms_each", "redis_mb", "log_mb_each"):
        values = [getattr(each, name) for each in rows]
        fields[name] = None if None in values else statistics.median(values)
    return Row(rows[0].system, **fields, errors=sum(each.errors for each in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=int, default=5, help="seconds of load for each system and round")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--only", default="", help="names of systems, comma-separated")
    parser.add_argument("--no-copies", action="store_true", help="do not count copies")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    # SIGTERM must stop the systems as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    names = [each.strip() for each in given.only.split(",") if each.strip()]
    about = {"rounds": given.rounds, "duration_s": given.duration, "connections": given.connections}
    rows = run(names, **about, counts=not given.no_copies)
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    _print(rows)


def _print(rows: list[Row]) -> None:
    print(
        f"{'system':12} {'requests/s':>10} {'p50 ms':>8} {'CPU ms':>8} {'MB in Redis':>12} {'MB in the log':>14}"
        f" {'copies':>11} errors"
    )
    for row in rows:
        redis = f"{row.redis_mb:12.1f} {row.log_mb_each:14.2f}" if row.redis_mb is not None else f"{'–':>12} {'–':>14}"
        copied = "+".join(f"{each:.1f}" for each in row.copied) or "–"
        times = f"{row.rps:10.1f} {row.p50_ms:8.1f} {row.cpu_ms_each:8.1f}"
        print(f"{row.system:12} {times} {redis} {copied:>11} {row.errors:6}")


if __name__ == "__main__":
    main()

"""`python -m tests.benchmarks.hostile [bodies|strangers]`: the effect of hostile clients on a known caller.

    bodies      20 bodies of 1 MiB a second, of every shape in `tests.bodies` in turn, with a good key
    strangers   2,000 connections that say nothing, stop inside a body, or dribble chunks of one byte

One web process, no-op model. The known caller has four connections and sends 100 requests per second, first alone, then
beside them: its p99, and the growth of the web process's memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException

import click
import psutil

from cli.loadgen.summary import percentile
from tests.benchmarks.bunch_system import NOOP, ROOT, WITH_KEYS, Bunch
from tests.benchmarks.greedy import make_keys
from tests.bodies import BULK, SHAPES

_BODY_BYTES = 1_048_576
_BODIES_PER_S = 20
_STRANGERS = 2_000
_PROBES, _PROBE_EVERY_S = 4, 0.04


@dataclass(frozen=True, slots=True)
class Seen:
    """The figures of the known caller."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    codes: dict[int, int]


def probe(port: int, credential: str, seconds: float) -> Seen:
    took: list[float] = []
    codes: Counter[int] = Counter()

    def ask(first: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {credential}"}
        began = time.monotonic()
        number = 0
        while time.monotonic() < began + seconds:
            started = time.monotonic()
            try:
                connection.request("POST", "/v1/inference", f'{{"input": "{first} {number}"}}', headers)
                response = connection.getresponse()
                response.read()
                status = response.status
            except (OSError, HTTPException):
                connection.close()
                status = 0
            took.append(time.monotonic() - started)
            codes[status] += 1
            number += 1
            time.sleep(max(0.0, started + _PROBE_EVERY_S - time.monotonic()))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(_PROBES)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    ordered = sorted(took)
    p50, p99 = ((percentile(ordered, fraction) or 0.0) * 1000 for fraction in (0.5, 0.99))
    return Seen(len(took), p50, p99, ordered[-1] * 1000, dict(codes))


async def throw(port: int, credential: str, seconds: float, rate: float) -> dict[str, int]:
    """Send hostile bodies at a steady rate; returns the number of each status."""
    bodies = [("/v1/inference", make(_BODY_BYTES)) for make in SHAPES.values()]
    bodies += [("/v1/inference/bulk", make(_BODY_BYTES)) for make in BULK.values()]
    codes: Counter[str] = Counter()

    async def one(number: int) -> None:
        path, body = bodies[number % len(bodies)]
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Authorization: Bearer {credential}\r\nIdempotency-Key: {number}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer):
                writer.write(head.encode() + body)
                line = await asyncio.wait_for(reader.readline(), 30)
                codes[line.split(b" ")[1].decode() if line else "closed"] += 1
                await reader.read()
        except (OSError, TimeoutError) as error:
            codes[type(error).__name__] += 1

    began = time.monotonic()
    tasks = []
    for number in range(int(seconds * rate)):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    return dict(codes)


def _web_process(bunch: Bunch) -> psutil.Process:
    """The process that serves, not the one that supervises it."""
    (pid,) = (each["pid"] for each in bunch.status()["processes"] if each["role"] == "web")
    (worker,) = psutil.Process(pid).children()
    return worker


def _attack(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _beside(bunch: Bunch, known: str, seconds: float, *attack: object) -> None:
    web = _web_process(bunch)
    alone = probe(bunch.port, known, seconds / 3)
    before = web.memory_info().rss
    attacker = _attack(*attack)
    time.sleep(2)
    peak = before
    stopped = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stopped.wait(0.1):
            peak = max(peak, web.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    beside = probe(bunch.port, known, seconds)
    said, _ = attacker.communicate(timeout=120)
    stopped.set()
    watcher.join()
    for name, seen in (("alone", alone), ("beside them", beside)):
        click.echo(
            f"{name:12} {seen.count:6} asked  p50 {seen.p50_ms:7.1f} ms  p99 {seen.p99_ms:7.1f} ms  "
            f"max {seen.max_ms:7.1f} ms  {seen.codes}"
        )
    click.echo(
        f"they: {said.strip()}\nmemory of the web process: {before >> 20} MiB, at most {(peak - before) >> 20} more"
    )


@click.command(help=__doc__)
@click.argument("what", default="bodies", type=click.Choice(["bodies", "strangers", "throw"]))
@click.option("--seconds", default=20, show_default=True)
@click.option("--auth", default="keys", type=click.Choice(["keys", "off"]), show_default=True)
@click.option("--rpm", default=1_000_000, show_default=True, help="What the attacker's key may ask a minute.")
@click.option("--port", default=0, hidden=True)
@click.option("--credential", default="", hidden=True)
def main(what: str, seconds: int, auth: str, rpm: int, port: int, credential: str) -> None:
    if what == "throw":
        click.echo(json.dumps(asyncio.run(throw(port, credential, seconds, _BODIES_PER_S))))
        return
    bunch = Bunch()
    bunch.open_run()
    try:
        bunch.launch_with(NOOP, {**WITH_KEYS, "BUNCH_PAID_RPM": str(min(rpm, 1_000_000)), "BUNCH_AUTH": auth})
        bunch.wait_ready()
        known, hostile = make_keys(bunch, 2) if auth == "keys" else ("", "")
        if what == "bodies":
            attack = ["tests.benchmarks.hostile", "throw", "--seconds", seconds + 2]
            _beside(bunch, known, seconds, *attack, "--port", bunch.port, "--credential", hostile)
        else:
            _beside(bunch, known, seconds, "tests.strangers", bunch.port, _STRANGERS, seconds + 2)
    finally:
        bunch.stop()


if __name__ == "__main__":
    main()

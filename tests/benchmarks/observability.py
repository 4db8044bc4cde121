"""`python -m tests.benchmarks.observability`: the cost of metrics, events, logs and traces at full speed.

The same stack with the no-op model, once for each way of being watched: with nothing counted (twice: how far those two
are apart is what the measurement cannot see), by default, with Flower beside it as `up` starts it, with all that an
installation would switch on, and with every request traced and logged. All of them run throughout; a round loads one
after the other for a few seconds, so that a drift of the machine meets all alike.

What each costs is said in requests a second, and in processor time a request over all of its processes (frontends,
worker, executor, Valkey, Flower), which is the steadier by far. Of both there is the median, and the better quartile:
whoever else uses the machine makes a run slower, and never faster.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import quantiles

import click

from tests.benchmarks.bunch_system import NOOP, ROOT, Bunch
from tests.benchmarks.load import ensure_wrk, run_wrk
from tests.benchmarks.rounds import by_turns, say_on_stderr
from tests.fakes.otlp import collector

logger = logging.getLogger("tests.benchmarks.observability")

OFF, AGAIN, DEFAULT, FLOWER = "nothing counted", "the same again", "default", "default, with Flower"
ON, ALL = "1% traced, page open, events on", "all traced and logged"
WAYS = (OFF, AGAIN, DEFAULT, FLOWER, ON, ALL)


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed run. `cpu_us`: microseconds of CPU per request."""

    rps: float
    cpu_us: float


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(2), default=10, show_default=True)
@click.option("--duration", type=click.IntRange(1), default=3, show_default=True, help="Seconds of each timed run.")
@click.option("--connections", type=click.IntRange(1), default=256, show_default=True)
def main(rounds: int, duration: int, connections: int) -> None:
    say_on_stderr()
    wrk = ensure_wrk()
    samples: dict[str, list[Sample]] = {way: [] for way in WAYS}
    with collector() as received, contextlib.ExitStack() as running:
        stacks = {way: running.enter_context(_running(way, received.endpoint)) for way in WAYS}
        for stack in stacks.values():
            _measure(stack, wrk, connections, 2)
        for number, ways in by_turns(WAYS, rounds):
            for way in ways:
                samples[way].append(_measure(stacks[way], wrk, connections, duration))
            logger.info("round %d: %s", number, ", ".join(f"{samples[way][-1].cpu_us:.1f}" for way in WAYS))
        spans = len(received.spans)
    click.echo(f"{connections} connections, {rounds} rounds of {duration} s; {spans:,} spans received")
    for way in WAYS:
        click.echo(_row(way, samples[way], samples[OFF]))


def _row(way: str, samples: list[Sample], base: list[Sample]) -> str:
    cells = [f"{way:32}"]
    # The better quartile: the first for CPU time, the last for requests per second.
    for name, unit, better in (("cpu_us", "µs of CPU", 0), ("rps", "requests/s", 2)):
        own, off = ([getattr(each, name) for each in samples], [getattr(each, name) for each in base])
        for what, place in (("median", 1), ("undisturbed", better)):
            value, compared = (quantiles(each, n=4, method="inclusive")[place] for each in (own, off))
            cells.append(f"{value:7,.0f} {unit} {what} {value / compared - 1:+6.1%}")
    return "  ".join(cells)


def _settings(way: str, endpoint: str) -> Mapping[str, str]:
    if way in {OFF, AGAIN}:
        return {"BUNCH_METRICS": "off", "BUNCH_EXPLAIN": "off"}
    if way == ON:
        return {"BUNCH_OTLP_ENDPOINT": endpoint, "BUNCH_TRACE_SAMPLE_RATIO": "0.01", "BUNCH_LOG_FORMAT": "json"}
    if way == ALL:
        return {"BUNCH_OTLP_ENDPOINT": endpoint, "BUNCH_TRACE_SAMPLE_RATIO": "1", "BUNCH_LOG_LEVEL": "DEBUG"}
    return {}


def _measure(bunch: Bunch, wrk: str, connections: int, duration_s: int) -> Sample:
    before = _settled(bunch)
    load = run_wrk(wrk, bunch.url, bunch.shape, connections=connections, duration_s=duration_s)
    return Sample(load.rps, (bunch.processes.cpu_s() - before) / load.requests * 1e6)


def _settled(bunch: Bunch) -> float:
    """Its CPU time once it is idle: spans of the last run are exported for a while."""
    now = bunch.processes.cpu_s()
    for _ in range(20):
        time.sleep(0.1)
        before, now = now, bunch.processes.cpu_s()
        if now - before < 0.03:
            break
    return now


@contextlib.contextmanager
def _running(way: str, endpoint: str) -> Iterator[Bunch]:
    bunch = Bunch()
    bunch.open_run()
    try:
        bunch.launch_with(NOOP, {**_settings(way, endpoint), "BUNCH_FLOWER_PORT": "0"}, flower=way == FLOWER)
        bunch.wait_ready()
        with _watched(bunch) if way in {ON, ALL} else contextlib.nullcontext():
            yield bunch
    finally:
        bunch.stop()


@contextlib.contextmanager
def _watched(bunch: Bunch) -> Iterator[None]:
    """`/ops` is open in a browser, and has enabled the workers' events."""
    subprocess.run(
        [sys.executable, "-m", "celery", "-b", bunch.redis_url(), "control", "enable_events"],
        cwd=ROOT, check=False, capture_output=True, timeout=30,
    )  # fmt: skip
    stream = urllib.request.urlopen(f"{bunch.url}/ops/events", timeout=30)

    def read() -> None:
        # Closed by the other thread in the middle of a read, for which http.client has no error of its own.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            while stream.readline():
                pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        stream.close()


if __name__ == "__main__":
    main()

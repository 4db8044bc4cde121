"""`python -m tests.benchmarks.observability`: what it costs to be watched, at full speed.

The same stack with the no-op model, four times in each round: with nothing counted, by default, with all that an
installation would switch on, and with every request traced and logged. A round has all of them in turn, so that a drift
of the machine meets all alike; medians over the rounds are compared.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from statistics import median

import click

from tests.benchmarks.bunch_system import NOOP, ROOT, Bunch
from tests.benchmarks.load import Load, WrkMissingError, ensure_wrk, run_wrk
from tests.fakes.otlp import collector

logger = logging.getLogger("tests.benchmarks.observability")

OFF, DEFAULT, ON, ALL = "nothing counted", "default", "1% traced, page open, events on", "all traced and logged"
WAYS = (OFF, DEFAULT, ON, ALL)


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--duration", type=click.IntRange(1), default=6, show_default=True, help="Seconds of each timed run.")
@click.option("--connections", type=click.IntRange(1), default=256, show_default=True)
def main(rounds: int, duration: int, connections: int) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    try:
        wrk = ensure_wrk()
    except WrkMissingError as error:
        raise click.ClickException(str(error)) from error
    loads: dict[str, list[Load]] = {way: [] for way in WAYS}
    with collector() as received:
        for number in range(1, rounds + 1):
            # There and back again: who comes first in a round has no advantage over the rounds.
            for way in WAYS if number % 2 else reversed(WAYS):
                loads[way].append(_measure(way, received.endpoint, wrk, connections, duration))
                logger.info("round %d, %s: %.0f requests/s", number, way, loads[way][-1].rps)
        spans = len(received.spans)
    base = median(each.rps for each in loads[OFF])
    click.echo(f"{connections} connections, {rounds} rounds of {duration} s; {spans:,} spans received")
    for way, each in loads.items():
        rps, p50_ms = (median(getattr(load, name) for load in each) for name in ("rps", "p50_ms"))
        click.echo(f"{way:34} {rps:9,.0f} requests/s  p50 {p50_ms:6.1f} ms  {rps / base - 1:+.1%}")


def _settings(way: str, endpoint: str) -> Mapping[str, str]:
    match way:
        case "nothing counted":
            return {"BUNCH_METRICS": "off"}
        case "1% traced, page open, events on":
            return {"BUNCH_OTLP_ENDPOINT": endpoint, "BUNCH_TRACE_SAMPLE_RATIO": "0.01", "BUNCH_LOG_FORMAT": "json"}
        case "all traced and logged":
            return {"BUNCH_OTLP_ENDPOINT": endpoint, "BUNCH_TRACE_SAMPLE_RATIO": "1", "BUNCH_LOG_LEVEL": "DEBUG"}
        case _:
            return {}


def _measure(way: str, endpoint: str, wrk: str, connections: int, duration_s: int) -> Load:
    bunch = Bunch()
    bunch.open_run()
    try:
        bunch.launch_with(NOOP, _settings(way, endpoint))
        bunch.wait_ready()
        with _watched(bunch) if way in {ON, ALL} else contextlib.nullcontext():
            run_wrk(wrk, bunch.url, bunch.shape, connections=connections, duration_s=2)
            return run_wrk(wrk, bunch.url, bunch.shape, connections=connections, duration_s=duration_s)
    finally:
        bunch.stop()


@contextlib.contextmanager
def _watched(bunch: Bunch) -> Iterator[None]:
    """Somebody looks at `/ops`, and has asked the workers for their events."""
    subprocess.run(
        [sys.executable, "-m", "celery", "-b", bunch.redis_url(), "control", "enable_events"],
        cwd=ROOT, check=False, capture_output=True, timeout=30,
    )  # fmt: skip
    stream = urllib.request.urlopen(f"{bunch.url}/ops/events", timeout=30)

    def read() -> None:
        # Closed by the other thread, in the middle of a read: http.client has no word for that.
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

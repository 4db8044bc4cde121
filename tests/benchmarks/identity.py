"""`python -m tests.benchmarks.identity`: what it costs to know who asks, and to write it down.

The same stack with the no-op model in each of four ways, in turn within each round, so that a drift of the machine
meets all alike; medians over the rounds are compared. A token is checked once and then remembered, as with any client
that keeps it.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from statistics import median

import click

from tests import issuer
from tests.benchmarks.bunch_system import NOOP, ROOT, Bunch
from tests.benchmarks.load import Load, WrkMissingError, ensure_wrk, run_wrk

logger = logging.getLogger("tests.benchmarks.identity")

OFF, KEYS, TOKENS, LEDGER = "auth off", "API keys", "tokens (JWT)", "API keys and ledger (SQLite)"
WAYS = (OFF, KEYS, TOKENS, LEDGER)
_PATIENCE_S = 30.0


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--duration", type=click.IntRange(1), default=6, show_default=True, help="Seconds of each timed run.")
@click.option("--connections", type=click.IntRange(1), default=64, show_default=True)
def main(rounds: int, duration: int, connections: int) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    try:
        wrk = ensure_wrk()
    except WrkMissingError as error:
        raise click.ClickException(str(error)) from error
    loads: dict[str, list[Load]] = {way: [] for way in WAYS}
    for number in range(1, rounds + 1):
        # There and back again: who comes first in a round has no advantage over the rounds.
        for way in WAYS if number % 2 else reversed(WAYS):
            loads[way].append(_measure(way, wrk, connections, duration))
            logger.info("round %d, %s: %.0f requests/s", number, way, loads[way][-1].rps)
    base = median(each.rps for each in loads[OFF])
    click.echo(f"{connections} connections, {rounds} rounds of {duration} s")
    for way, each in loads.items():
        rps, p50_ms, p99_ms = (median(getattr(load, name) for load in each) for name in ("rps", "p50_ms", "p99_ms"))
        errors = sum(load.errors for load in each)
        click.echo(
            f"{way:30} {rps:9,.0f} requests/s  p50 {p50_ms:6.1f} ms  p99 {p99_ms:6.1f} ms  "
            f"{rps / base - 1:+.1%}  {1e6 / rps - 1e6 / base:+.1f} µs a request  {errors} errors"
        )


def _settings(way: str) -> Mapping[str, str]:
    if way == OFF:
        return {}
    if way == TOKENS:
        claims = {"AUDIENCE": issuer.AUDIENCE, "ISSUER": issuer.ISSUER, "SECRET": issuer.SECRET}
        return {"BUNCH_AUTH": "jwt"} | {f"BUNCH_JWT_{name}": value for name, value in claims.items()}
    return {"BUNCH_AUTH": "keys"} | ({"BUNCH_LEDGER_RETENTION_DAYS": "1"} if way == LEDGER else {})


def _measure(way: str, wrk: str, connections: int, duration_s: int) -> Load:
    bunch = Bunch()
    bunch.open_run()
    try:
        bunch.launch_with(NOOP, _settings(way))
        bunch.wait_ready()
        credential = _credential(way, bunch)
        run_wrk(wrk, bunch.url, bunch.shape, connections=connections, duration_s=2, credential=credential)
        return run_wrk(
            wrk, bunch.url, bunch.shape, connections=connections, duration_s=duration_s, credential=credential
        )
    finally:
        bunch.stop()


def _credential(way: str, bunch: Bunch) -> str:
    """One that every frontend takes."""
    if way == OFF:
        return ""
    if way == TOKENS:
        return issuer.token(time.time(), "HS256", tier="paid", exp=int(time.time()) + 3600)
    limits = ("--rpm", "100000000", "--burst", "10000000")
    command = [sys.executable, "manage.py", "keys", "create", "--tier", "paid", "--json", *limits]
    environment = bunch.environment()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=30)
    secret = str(json.loads(done.stdout)["secret"])
    until = time.monotonic() + _PATIENCE_S
    # Both web processes, whichever answers.
    while not all(_is_known(bunch, secret) for _ in range(20)):
        if time.monotonic() > until:
            raise click.ClickException("the key never became known")
        time.sleep(0.5)
    return secret


def _is_known(bunch: Bunch, secret: str) -> bool:
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{bunch.url}/v1/inference", b'{"input": 1}', headers)
    try:
        with urllib.request.urlopen(request, timeout=10):
            return True
    except urllib.error.HTTPError:
        return False


if __name__ == "__main__":
    main()

"""`python -m tests.benchmarks.identity`: the cost of authentication, rate limits and the ledger.

The same stack with the no-op model in each of five configurations, in turn within each round, so that a drift of the
machine affects all alike; medians over the rounds are compared. CPU time per request is given by role: it shows where a
cost arises, and other load on the machine changes it less than it changes the rate. `scripts` is the part of Redis' CPU
time that scripts took, as Redis counts it. Callers with a credential have limits too, which are checked and never
reached here. A token is verified once and then cached, as with any client that keeps it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, cast

import click

from config.redis import connect
from tests import issuer
from tests.benchmarks.bunch_system import NOOP, OUT_OF_REACH, WITH_KEYS, WITH_LEDGER, Bunch
from tests.benchmarks.load import Load, ensure_wrk, run_wrk
from tests.benchmarks.roles import cpu_s
from tests.benchmarks.rounds import by_turns, say_on_stderr

logger = logging.getLogger("tests.benchmarks.identity")

NOTHING, OFF, KEYS = "auth off, admission off", "auth off", "API keys, limits"
TOKENS, LEDGER = "tokens (JWT), limits", "API keys, limits, ledger (SQLite)"
WAYS = (NOTHING, OFF, KEYS, TOKENS, LEDGER)
ROLES = ("web", "redis", "worker", "ops")
SCRIPTS = "scripts"


@dataclass(frozen=True)
class Cost:
    """The figures of one run; `cpu_us` is CPU time per request, by role, and of scripts in Redis."""

    load: Load
    cpu_us: dict[str, float]


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--duration", type=click.IntRange(1), default=6, show_default=True, help="Seconds of each timed run.")
@click.option("--connections", type=click.IntRange(1), default=64, show_default=True)
def main(rounds: int, duration: int, connections: int) -> None:
    say_on_stderr()
    wrk = ensure_wrk()
    costs: dict[str, list[Cost]] = {way: [] for way in WAYS}
    for number, ways in by_turns(WAYS, rounds):
        for way in ways:
            costs[way].append(_measure(way, wrk, connections, duration))
            logger.info("round %d, %s: %.0f requests/s", number, way, costs[way][-1].load.rps)
    click.echo(f"{connections} connections, {rounds} rounds of {duration} s; processor time in µs a request")
    columns = (*ROLES, SCRIPTS)
    click.echo(f"{'':34}{'requests/s':>12}{'p50 ms':>9}{'errors':>8}" + "".join(f"{role:>9}" for role in columns))
    for way, each in costs.items():
        rps, p50_ms = (median(getattr(cost.load, name) for cost in each) for name in ("rps", "p50_ms"))
        cpu_us = "".join(f"{median(cost.cpu_us[role] for cost in each):9.1f}" for role in columns)
        click.echo(f"{way:34}{rps:12,.0f}{p50_ms:9.1f}{sum(cost.load.errors for cost in each):8}{cpu_us}")


def _settings(way: str) -> Mapping[str, str]:
    if way == NOTHING:
        return {"BUNCH_ADMISSION": "off"}
    if way == OFF:
        return {}
    if way == TOKENS:
        claims = {"AUDIENCE": issuer.AUDIENCE, "ISSUER": issuer.ISSUER, "SECRET": issuer.SECRET}
        return OUT_OF_REACH | {"BUNCH_AUTH": "jwt"} | {f"BUNCH_JWT_{name}": value for name, value in claims.items()}
    return WITH_KEYS | (WITH_LEDGER if way == LEDGER else {})


def _measure(way: str, wrk: str, connections: int, duration_s: int) -> Cost:
    bunch = Bunch()
    bunch.open_run()
    try:
        bunch.launch_with(NOOP, _settings(way))
        bunch.wait_ready()
        shape = replace(bunch.shape, credential=_credential(way, bunch))
        run_wrk(wrk, bunch.url, shape, connections=connections, duration_s=2)
        before = _cpu_seconds(bunch)
        load = run_wrk(wrk, bunch.url, shape, connections=connections, duration_s=duration_s)
        after = _cpu_seconds(bunch)
        return Cost(load, {role: (after[role] - before[role]) * 1e6 / max(1, load.requests) for role in before})
    finally:
        bunch.stop()


def _cpu_seconds(bunch: Bunch) -> dict[str, float]:
    spent = cpu_s(bunch)
    spent["worker"] += spent.pop("executor")
    with connect(bunch.redis_url()) as redis:
        scripts = cast("dict[str, Any]", redis.info("commandstats"))["cmdstat_evalsha"]
    return spent | {SCRIPTS: scripts["usec"] / 1e6}


def _credential(way: str, bunch: Bunch) -> str:
    """A credential that every frontend accepts."""
    if way in {NOTHING, OFF}:
        return ""
    if way == TOKENS:
        return issuer.token(time.time(), "HS256", tier="paid", exp=int(time.time()) + 3600)
    return bunch.make_key()


if __name__ == "__main__":
    main()

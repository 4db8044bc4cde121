"""`python -m tests.benchmarks.greedy`: the effect on twenty callers of one that sends twenty times its share.

    twenty keys of one tier, together two thirds of ─┬─ alone
    what the executors can do                        └─ beside a key that asks for 20/21 of it: 162 % in all

The two alternate in the same stack, so that a drift of the machine affects both alike. The rate limits are never
reached: the fair shares at admission and claim are measured, not the rate limit of a key. The same comparison in
virtual time, exact and without HTTP, is in `tests/integration/test_admission.py`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import median

import click
import msgspec

from cli.loadgen.arrivals import Caller
from cli.loadgen.load import Answer, Load, Run
from cli.loadgen.summary import percentile
from config.tiers import Tier
from tests.benchmarks.bunch_system import ROOT, Bunch
from tests.benchmarks.overload import BATCH, BATCH_MS, CAPACITY_RPS, EXECUTORS, ITEM_MS, TIMEOUT_S

TIER = Tier.PAID
ORDINARY, TIMES = 20, 20
ORDINARY_RPS = CAPACITY_RPS * 2 / 3 / ORDINARY
GREEDY_RPS = TIMES * CAPACITY_RPS / (ORDINARY + 1)
CONFIG = f"""
[models.gpu]
source = "workers.models.simulated:Simulated"
max_batch_size = {BATCH}
instances = {EXECUTORS}
options = {{ batch_ms = {BATCH_MS}, item_ms = {ITEM_MS} }}
"""
SETTINGS = {"BUNCH_AUTH": "keys", "BUNCH_PAID_RPM": "1000000", "BUNCH_ENTERPRISE_RPM": "1000000"}
GREEDY = "greedy"
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Row:
    """One side of one run. `served` is the fraction of its requests that were answered with 200."""

    run: str
    who: str
    offered_rps: float
    served: float
    p50_ms: float
    p95_ms: float
    codes: dict[int, int]


def make_keys(bunch: Bunch, count: int) -> list[str]:
    """Secrets of `count` keys that every frontend accepts."""
    secrets = [_make_key(bunch) for _ in range(count)]
    until = time.monotonic() + _PATIENCE_S
    while not asyncio.run(_all_known(bunch, secrets)):
        if time.monotonic() > until:
            raise click.ClickException("the keys never became known")
    return secrets


def _make_key(bunch: Bunch) -> str:
    command = [sys.executable, "manage.py", "keys", "create", "--tier", TIER.value, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env=bunch.environment() | SETTINGS, capture_output=True, text=True, check=True, timeout=30
    )
    return str(json.loads(done.stdout)["secret"])


async def _all_known(bunch: Bunch, secrets: Sequence[str]) -> bool:
    """Return whether all keys are known; each is tried several times, so that it reaches different frontends."""
    run = await _load(bunch, callers_of(secrets, ""), CAPACITY_RPS / 3, 2.0)
    return all(each.status != 401 for each in run.answers)


def callers_of(ordinary: Sequence[str], greedy: str) -> list[Caller]:
    callers = [Caller(f"key {n}", _bearer(secret)) for n, secret in enumerate(ordinary)]
    return callers + ([Caller(GREEDY, _bearer(greedy), GREEDY_RPS / ORDINARY_RPS)] if greedy else [])


def _bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def _load(bunch: Bunch, callers: Sequence[Caller], rps: float, seconds: float) -> Run:
    run = Run()

    def body(number: int) -> bytes:
        return msgspec.json.encode({"input": f"request {number}"})

    await Load(f"{bunch.url}/v1/inference", body, TIMEOUT_S, run, callers).open(rps, duration_s=seconds)
    return run


def measure(bunch: Bunch, ordinary: Sequence[str], greedy: str, seconds: float) -> list[Row]:
    """One run: the ordinary keys at their own rate, with or without the greedy one on top."""
    callers = callers_of(ordinary, greedy)
    rps = ORDINARY_RPS * sum(each.weight for each in callers)
    run = asyncio.run(_load(bunch, callers, rps, seconds))
    name = "beside it" if greedy else "alone"
    # The first second fills the queue.
    counted = [each for each in run.answers if each.finished_s - each.latency_s >= 1.0]
    sides = {
        f"{ORDINARY} keys": [each for each in counted if each.tier != GREEDY],
        GREEDY: [each for each in counted if each.tier == GREEDY],
    }
    return [_row(name, who, mine, seconds - 1.0) for who, mine in sides.items() if mine]


def _row(name: str, who: str, answers: Sequence[Answer], seconds: float) -> Row:
    good = sorted(each.latency_s for each in answers if each.status == 200)
    p50, p95 = ((percentile(good, fraction) or 0.0) * 1000 for fraction in (0.5, 0.95))
    codes = dict(sorted(Counter(each.status for each in answers).items()))
    return Row(name, who, len(answers) / seconds, len(good) / len(answers), p50, p95, codes)


def in_the_middle(rows: Sequence[Row]) -> Row:
    """The medians of each figure over the rounds of one side."""
    codes = sum((Counter(row.codes) for row in rows), Counter())
    offered, served, p50, p95 = (
        median(getattr(row, name) for row in rows) for name in ("offered_rps", "served", "p50_ms", "p95_ms")
    )
    return Row(rows[0].run, rows[0].who, offered, served, p50, p95, dict(sorted(codes.items())))


def report(rows: Sequence[Row]) -> str:
    lines = ["| run | who | offered/s | served | p50 ms | p95 ms | answers |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        codes = ", ".join(f"{code}: {count:,}" for code, count in row.codes.items())
        figures = f"{row.offered_rps:.0f} | {row.served:.1%} | {row.p50_ms:.0f} | {row.p95_ms:.0f}"
        lines.append(f"| {row.run} | {row.who} | {figures} | {codes} |")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=12, show_default=True, type=click.IntRange(3), help="Of each run.")
@click.option("--shards", default=1, show_default=True, type=click.IntRange(1))
def main(rounds: int, seconds: int, shards: int) -> None:
    bunch = Bunch()
    bunch.open_run()
    rows: list[Row] = []
    try:
        bunch.launch_with(CONFIG, SETTINGS | {"BUNCH_SHARDS": str(shards)})
        bunch.wait_ready()
        *ordinary, greedy = make_keys(bunch, ORDINARY + 1)
        measure(bunch, ordinary, greedy, 3)
        for number in range(rounds):
            # Alternate the order.
            for asking in ("", greedy) if number % 2 == 0 else (greedy, ""):
                rows += measure(bunch, ordinary, asking, seconds)
    finally:
        bunch.stop()
    sides = dict.fromkeys((row.run, row.who) for row in rows)
    middle = [in_the_middle([row for row in rows if (row.run, row.who) == side]) for side in sides]
    click.echo(f"capacity {CAPACITY_RPS:.0f}/s; medians of {rounds} rounds of {seconds} s\n\n{report(middle)}")
    alone, beside = (row for row in middle if row.who != GREEDY)
    click.echo(f"\np95 of the {ORDINARY} keys: {beside.p95_ms / alone.p95_ms - 1:+.1%}")
    path = ROOT / "var" / "bench" / f"greedy-{datetime.now().astimezone():%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()

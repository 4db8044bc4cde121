"""`python -m tests.benchmarks.overload`: the service of each tier when more requests arrive than the executors can
serve.

mix    150 % of capacity, 70 % free, 25 % paid, 5 % enterprise, against enterprise alone at its own rate
half   90 % of capacity in that mix; half of the executors are killed and need four seconds to come back

The capacity is known, since the model is a stand-in with a fixed time per batch.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeAlias

import click
import msgspec

from cli.loadgen.arrivals import Caller
from cli.loadgen.load import Answer, Load, Run
from cli.loadgen.summary import percentile
from config.redis import connect
from config.tiers import TIERS, Tier
from tasks.fleet.registry_reader import Fleet
from tests.benchmarks.bunch_system import ROOT, Bunch
from tests.benchmarks.system import Model

EXECUTORS, BATCH, BATCH_MS, ITEM_MS = 2, 16, 100, 0.5
CAPACITY_RPS = EXECUTORS * BATCH / (BATCH_MS + ITEM_MS * BATCH) * 1000
Mix: TypeAlias = Mapping[Tier, float]
MIX: Mix = {Tier.FREE: 70, Tier.PAID: 25, Tier.ENTERPRISE: 5}
ENTERPRISE_ALONE: Mix = {Tier.ENTERPRISE: 1}
TIMEOUT_S = 5.0
RELOAD_S = 4.0
KILL_AT_S = 3.0
CONFIG = f"""
default_model = "gpu"

[models.gpu]
source = "workers.models.simulated:Simulated"
max_batch_size = {BATCH}
instances = {EXECUTORS}

[models.gpu.options]
batch_ms = {BATCH_MS}
item_ms = {ITEM_MS}
load_ms = {RELOAD_S * 1000:.0f}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One tier in one run. `served` is the fraction of its requests that were answered with 200."""

    run: str
    tier: str
    offered_rps: float
    served: float
    p50_ms: float | None
    p95_ms: float | None
    codes: dict[int, int]


class Served(Bunch):
    """Bunch with the stand-in model above."""

    def launch(self, model: Model) -> None:
        self.launch_with(CONFIG, {})


async def load_mix(
    url: str, mix: Mix, rps: float, seconds: float, *, kill: Sequence[int] = (), kill_at_s: float = 0.0
) -> Run:
    """Send Poisson arrivals of a mix; the processes in `kill` are killed meanwhile."""
    run = Run()

    def body(number: int) -> bytes:
        return msgspec.json.encode({"input": f"request {number}"})

    async def killer() -> None:
        await asyncio.sleep(kill_at_s)
        for pid in kill:
            os.kill(pid, signal.SIGKILL)

    callers = [Caller(tier.value, {"X-Tier": tier.value}, weight) for tier, weight in mix.items()]
    load = Load(f"{url}/v1/inference", body, TIMEOUT_S, run, callers)
    killing = asyncio.create_task(killer())
    await load.open(rps, duration_s=seconds)
    await killing
    return run


def answers_of(run: Run, tier: Tier) -> list[Answer]:
    return [each for each in run.answers if each.tier == tier.value]


def rows_of(name: str, run: Run, mix: Mix, seconds: float, after_s: float = 0.0) -> list[Row]:
    """Rows by tier, for requests that were due later than `after_s`."""
    found = []
    for tier in TIERS:
        if tier not in mix:
            continue
        mine = [each for each in answers_of(run, tier) if came_s(each) >= after_s]
        good = sorted(each.latency_s for each in mine if each.status == 200)
        statuses = sorted({each.status for each in mine})
        codes = {status: sum(each.status == status for each in mine) for status in statuses}
        served = len(good) / len(mine) if mine else 0.0
        offered = len(mine) / (seconds - after_s)
        found.append(Row(name, tier.value, offered, served, _ms(good, 0.5), _ms(good, 0.95), codes))
    return found


def came_s(answer: Answer) -> float:
    """The due time of the request, in seconds from the start of the run."""
    return answer.finished_s - answer.latency_s


def _ms(ordered: Sequence[float], fraction: float) -> float | None:
    found = percentile(ordered, fraction)
    return None if found is None else found * 1000


def goodput(run: Run, from_s: float, to_s: float) -> float:
    """Answers per second between two times of a run, as a fraction of the capacity."""
    served = sum(each.status == 200 and from_s <= each.finished_s < to_s for each in run.answers)
    return served / (to_s - from_s) / CAPACITY_RPS


def executors_of(redis_url: str) -> list[int]:
    with connect(redis_url) as redis:
        return [each.pid for worker in Fleet(redis).workers() for each in worker.models if each.pid]


def report(rows: Sequence[Row]) -> str:
    lines = [f"{'run':<36}{'tier':<12}{'offered/s':>10}{'served':>9}{'p50 ms':>9}{'p95 ms':>9}  codes"]
    for row in rows:
        p50, p95 = (f"{value:.0f}" if value is not None else "–" for value in (row.p50_ms, row.p95_ms))
        codes = ", ".join(f"{code}: {count}" for code, count in row.codes.items())
        lines.append(f"{row.run:<36}{row.tier:<12}{row.offered_rps:>10.1f}{row.served:>9.1%}{p50:>9}{p95:>9}  {codes}")
    return "\n".join(lines)


def refused_by_second(run: Run, tier: Tier, seconds: int) -> list[float]:
    """For each second, the fraction of a tier's requests that was not answered with 200."""
    parts = []
    for second in range(seconds):
        mine = [each for each in answers_of(run, tier) if int(came_s(each)) == second]
        parts.append(sum(each.status != 200 for each in mine) / len(mine) if mine else 0.0)
    return parts


def measure(url: str, mix: Mix, rps: float, seconds: float, **options: Any) -> Run:
    return asyncio.run(load_mix(url, mix, rps, seconds, **options))


@click.command(help=__doc__)
@click.option("--seconds", default=20, show_default=True, type=click.IntRange(10))
@click.option("--docs", is_flag=True, help="Put table and picture into docs/benchmarks.md.")
def main(seconds: int, docs: bool) -> None:
    # Imported here, because that module draws the results of this one.
    from tests.benchmarks import overload_page

    rows: list[Row] = []
    served = Served()
    with served.running("50ms"):
        warm = measure(served.url, MIX, CAPACITY_RPS, 3)
        enterprise_rps = 1.5 * CAPACITY_RPS * 0.05
        alone = measure(served.url, ENTERPRISE_ALONE, enterprise_rps, seconds)
        rows += rows_of("enterprise alone", alone, ENTERPRISE_ALONE, seconds)
        over = measure(served.url, MIX, 1.5 * CAPACITY_RPS, seconds)
        rows += rows_of("150 % of capacity", over, MIX, seconds, after_s=1.0)
        victims = executors_of(served.redis_url())[: EXECUTORS // 2]
        half = measure(served.url, MIX, 0.9 * CAPACITY_RPS, seconds, kill=victims, kill_at_s=KILL_AT_S)
        rows += rows_of("90 %, half of the executors killed", half, MIX, seconds)
    click.echo(f"capacity {CAPACITY_RPS:.0f}/s; {len(warm.answers)} requests to warm up\n")
    click.echo(report(rows))
    click.echo(f"\ngoodput at 150 %: {goodput(over, 2, seconds - 1):.1%} of capacity")
    for tier in TIERS:
        parts = refused_by_second(half, tier, seconds)
        click.echo(
            f"refused by second, half killed at {KILL_AT_S:g} s, {tier.value:<10} "
            + " ".join(f"{p:4.0%}" for p in parts)
        )
    path = ROOT / "var" / "bench" / f"overload-{datetime.now().astimezone():%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    picture = ROOT / "docs" / "images" / "overload.svg" if docs else path.with_suffix(".png")
    overload_page.draw(picture, over, half, seconds, KILL_AT_S)
    click.echo(f"wrote {picture}")
    if docs:
        overload_page.fill(ROOT / "docs" / "benchmarks.md", rows, goodput(over, 2, seconds - 1), half, seconds)


if __name__ == "__main__":
    main()

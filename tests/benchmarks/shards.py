"""Benchmarks shards: requests a second, batch size and latency of the whole of Bunch, by where its requests are.

    python -m tests.benchmarks.shards [--rounds 3] [--duration 5] [--connections 128] [--json]

Each way is a stack of its own, started for its turn: `up` with one Redis and 1, 4 or 16 shards, and with a cluster of
three primaries and 16 shards. All of it runs on this machine, as does the load: what a way costs in CPU it loses in
requests. So the ratio is the cost of shards, not what several machines could do.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from cli.loadgen.load import Load, Run
from tests.benchmarks.http_server import rows_asked_for
from tests.benchmarks.rounds import by_turns
from tests.e2e.stack import Stack

_OPTIONS = ("--web-workers=1", "--workers=1", "--no-flower")
_WAYS: dict[str, tuple[int, tuple[str, ...]]] = {
    "one Redis, 1 shard": (1, ()),
    "one Redis, 4 shards": (4, ()),
    "one Redis, 16 shards": (16, ()),
    "a cluster of 3, 16 shards": (16, ("--cluster",)),
}
_MODEL = """\
[models.steady]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 5, item_ms = 0.05 }
max_batch_size = 64
"""
_WARM_UP_S = 1.0
_ROLES = ("web", "worker", "redis")


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds. `ratio` is the median of each round's ratio to the first way."""

    way: str
    per_second: float
    ratio: float
    mean_batch: float
    p50_ms: float
    web_us: float
    worker_us: float
    redis_us: float


# Answers a second, mean batch, median latency in ms; then µs of CPU for each answer, of each of `_ROLES`.
Measured = tuple[float, ...]


def measure(way: str, *, connections: int, duration_s: int) -> Measured:
    """Measure one way, on a stack that is started for it."""
    shards, options = _WAYS[way]
    with tempfile.TemporaryDirectory(prefix="bench-shards-") as folder:
        stack = Stack(Path(folder), _MODEL)
        try:
            stack.start(*_OPTIONS, *options, shards=shards, admission="off")
            asyncio.run(_load(stack, connections, _WARM_UP_S))
            before = [_cpu_s(stack, role) for role in _ROLES]
            run = asyncio.run(_load(stack, connections, float(duration_s)))
            spent = [_cpu_s(stack, role) - then for role, then in zip(_ROLES, before, strict=True)]
        finally:
            stack.terminate()
            stack.process.wait(60)
    if {each.status for each in run.answers} != {200}:
        raise RuntimeError(f"{way}: not every request was answered")
    latencies = [each.latency_s for each in run.answers]
    batch = statistics.fmean(each.batch_size for each in run.answers)
    count = len(run.answers)
    return count / duration_s, batch, statistics.median(latencies) * 1000, *(each / count * 1e6 for each in spent)


def _cpu_s(stack: Stack, role: str) -> float:
    """The CPU time of a role's processes, and of those below them."""
    processes = [psutil.Process(pid) for pid in stack.pids(role)]
    family = {each.pid: each for of in processes for each in (of, *of.children(recursive=True))}
    return sum(sum(each.cpu_times()[:2]) for each in family.values())


async def _load(stack: Stack, connections: int, duration_s: float) -> Run:
    run = Run()

    def body(number: int) -> bytes:
        return json.dumps({"input": f"question {number}"}).encode()

    await Load(stack.url + "/v1/inference", body, timeout_s=10.0, run=run).closed(connections, duration_s=duration_s)
    return run


def run(*, rounds: int, duration_s: int, connections: int) -> list[Row]:
    measured: dict[str, list[Measured]] = {way: [] for way in _WAYS}
    for number, ways in by_turns(tuple(_WAYS), rounds):
        for way in ways:
            measured[way].append(measure(way, connections=connections, duration_s=duration_s))
            print(f"round {number}: {way:26} {measured[way][-1][0]:8.0f}/s", file=sys.stderr)
    first = measured[next(iter(_WAYS))]
    return [
        Row(
            way,
            statistics.median(each[0] for each in results),
            statistics.median(each[0] / base[0] for each, base in zip(results, first, strict=True)),
            *(statistics.median(each[column] for each in results) for column in range(1, 6)),
        )
        for way, results in measured.items()
    ]


def main() -> None:
    rows = rows_asked_for(__doc__, run)
    if not rows:
        return
    print(f"{'':26} {'a second':>10} {'ratio':>6} {'mean batch':>10} {'p50 ms':>8}   CPU µs each: web, worker, redis")
    for row in rows:
        spent = f"{row.web_us:8.0f} {row.worker_us:8.0f} {row.redis_us:8.0f}"
        print(
            f"{row.way:26} {row.per_second:10.0f} {row.ratio:6.2f} {row.mean_batch:10.1f} {row.p50_ms:8.1f}   {spent}"
        )


if __name__ == "__main__":
    main()

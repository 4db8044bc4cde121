"""Measures the overhead on this machine: `Overheads` for the simulator, from other loads than those that it predicts.

Three loads: single requests to a model that takes no time (the fixed overhead), and batches of 64 of a model of 50 ms,
sent at once and by callers in a closed loop (the overhead per request of a batch in each stage, and how the callers of
each batch returned).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import fields
from statistics import median

import click
import msgspec
import numpy as np
from redis import Redis

from batching.simulator import Arrivals, Callers, Overheads, Recorded
from cli.loadgen.load import Answer, Load, Run
from tasks.observability.batch_log import BatchLog, BatchRecord

MAX = 64
TIMEOUT_S = 9.0
# The model for batches of 64.
FLAT_MS = 50.0
# The configuration, as bunch.toml text.
MODELS = f"""
[models.echo]
source = "workers.models.echo:Echo"
max_batch_size = {MAX}

[models.flat]
source = "workers.models.simulated:Simulated"
max_batch_size = {MAX}
max_wait_ms = 2000
policy = "fixed"
options = {{ batch_ms = {FLAT_MS}, item_ms = 0 }}
"""


def calibrate(url: str, redis: Redis) -> Overheads:
    """Measure the overheads: those of a lone request, and those that each of 64 requests of a batch adds to each
    stage.
    """
    drive(url, "echo", Callers(1), 2.0)
    # At long intervals, so that everything is idle before each, as it is under the compared loads.
    seldom = drive(url, "echo", Recorded(np.arange(0, 5, 0.07).tolist()), 5.0)
    fixed_s = median(each.latency_s for each in seldom.answers)
    once = drive(url, "flat", Recorded(np.repeat(np.arange(0, 4, 0.3), MAX).tolist()), 4.0)
    # The first request of a batch waits in the queue for the last.
    in_s = median(max(map(_queue_s, batch)) for batch in _batches(once)) / MAX
    first_s = median(min(each.latency_s for each in batch) for batch in _batches(once))
    both_s = max(0.0, (first_s - FLAT_MS / 1000 - fixed_s) / MAX - in_s)
    # The workers have recorded the part after the model.
    stored_ms = [each.reply_ms for each in _records(redis, once)]
    finish_s = min(both_s, median(stored_ms) / 1000 / MAX)
    loop = drive(url, "flat", Callers(MAX), 8.0)
    came = returns(_records(redis, loop))
    # Callers that return one after the other are not accepted faster than that.
    in_s = min(in_s, median(apart for _, apart in came))
    ways = ways_back(came, in_s, finish_s)
    out_s = median(each for _, each in ways)
    ends = sorted(min(each.finished_s for each in batch) for batch in _batches(loop) if len(batch) == MAX)
    cycle_s = median(after - before for before, after in itertools.pairwise(ends))
    # The rest of a turn of the loop, at most the difference that independent callers have shown.
    claim_s = min(both_s - finish_s, max(0.0, (cycle_s - FLAT_MS / 1000 - fixed_s) / MAX - in_s - finish_s - out_s))
    each_us = " + ".join(f"{each * 1e6:.0f}" for each in (in_s, claim_s, finish_s, out_s))
    late_ms = np.quantile([finish + out for finish, out in ways], [0.05, 0.95]) * MAX * 1000
    click.echo(
        f"{fixed_s * 1000:.2f} ms for a request, and {each_us} µs for each of a batch; "
        f"{len(ways)} batches of {MAX} were answered within {late_ms[0]:.1f} to {late_ms[1]:.1f} ms",
        err=True,
    )
    # The split of the fixed part changes no figure by more than itself; its order is that of the work of the steps.
    return Overheads(
        submit_s=0.3 * fixed_s,
        submit_item_s=in_s,
        look_s=0.1 * fixed_s,
        claim_s=0.25 * fixed_s,
        claim_item_s=claim_s,
        collect_s=0.15 * fixed_s,
        reply_s=0.3 * fixed_s,
        finish_item_s=finish_s,
        reply_item_s=out_s,
        ways_back=tuple(ways),
    )


def returns(records: Sequence[BatchRecord]) -> list[tuple[float, float]]:
    """The returns of callers: seconds from a batch's end until the first was in the queue, and from one to the next.

    Args:
        records: batches of a closed loop, in order; each has all the callers of the one before it.
    """
    found = []
    for before, after in itertools.pairwise(records):
        ended_ms = before.claimed_ms + before.wait_ms + before.turn_ms
        came_ms = [after.claimed_ms - each.queue_ms for each in after.members]
        first_ms, last_ms = min(came_ms), max(came_ms)
        if first_ms - ended_ms > before.turn_ms:
            # A batch that was not full is missing here.
            continue
        found.append(((first_ms - ended_ms) / 1000, (last_ms - first_ms) / 1000 / (len(came_ms) - 1)))
    return found


def ways_back(came: Sequence[tuple[float, float]], in_s: float, finish_s: float) -> list[tuple[float, float]]:
    """The part of the returns that is the time of the answers: `Overheads.ways_back`.

    Args:
        in_s: time of a request until it is in the queue.
        finish_s: usual time until its batch is stored; a later first answer makes it longer.
    """
    usual_s = median(first for first, _ in came)
    return [(max(0.0, finish_s + (first - usual_s) / MAX), max(0.0, apart - in_s)) for first, apart in came]


def _records(redis: Redis, run: Run) -> list[BatchRecord]:
    """The records of the full batches of a run, in order."""
    ids = {each.batch_id for each in run.answers}
    found = [each for each in BatchLog(redis).records() if each.id in ids and len(each.members) == MAX]
    return sorted(found, key=lambda each: each.claimed_ms)


def _queue_s(answer: Answer) -> float:
    return float(msgspec.json.decode(answer.body)["metadata"]["queue_ms"]) / 1000


def _batches(run: Run) -> list[list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for each in run.answers:
        found.setdefault(each.batch_id, []).append(each)
    return list(found.values())


def pooled(found: Sequence[Overheads]) -> Overheads:
    """The result of several calibrations: the median of each cost, and the ways back of all."""
    ways = tuple(way for each in found for way in each.ways_back)
    costs = {
        field.name: median(getattr(each, field.name) for each in found)
        for field in fields(Overheads)
        if field.name != "ways_back"
    }
    return Overheads(**costs, ways_back=ways)


def drive(url: str, model: str, arrivals: Arrivals, duration_s: float) -> Run:
    """Send one load to one model; for the `flat` model the bodies of the answers are kept."""
    run = Run(keep_bodies=model == "flat")

    def body(number: int) -> bytes:
        return msgspec.json.encode({"model": model, "input": f"request {number}"})

    load = Load(url, body, TIMEOUT_S, run)
    if isinstance(arrivals, Callers):
        asyncio.run(load.closed(arrivals.callers, duration_s=duration_s))
    else:
        assert isinstance(arrivals, Recorded)
        asyncio.run(load.at(arrivals.at_s))
    time.sleep(0.3)
    return run

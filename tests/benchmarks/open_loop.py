"""Open-loop load: requests arrive by their own clock (Poisson), independent of the answers.

A closed loop slows down with the system that it measures, so it sends few requests while that is slow. Here a latency
counts from the due time of the request, not from when it was sent, so a stall affects every request that was due in it
(no coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from tests.benchmarks.http_client import Connection
from tests.benchmarks.shapes import Shape


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of the requests with right answers; `late_ms` is the largest delay of the generator itself."""

    offered_rps: float
    answered: int
    failed: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    late_ms: float


def arrivals(rate: float, duration_s: float, seed: int) -> Iterator[float]:
    """Times from the start, in seconds, with exponential gaps: independent callers."""
    source = random.Random(seed)
    at = source.expovariate(rate)
    while at < duration_s:
        yield at
        at += source.expovariate(rate)


def ideal_p50_ms(due: Sequence[float], *, batch_s: float, max_batch_size: int) -> float:
    """The median latency of an ideal server without overhead: it takes all waiting requests as soon as the model is
    free.

    Most of the wait beyond the model's own time is for the batch that is running when the request comes. No batcher
    with one model can avoid that; the overhead of a real system is the rest above this.
    """
    latencies = []
    free_at = 0.0
    first = 0
    while first < len(due):
        start = max(free_at, due[first])
        end = first
        while end < len(due) and end - first < max_batch_size and due[end] <= start:
            end += 1
        free_at = start + batch_s
        latencies += [free_at - at for at in due[first:end]]
        first = end
    return median(latencies) * 1e3


def open_loop(base_url: str, shape: Shape, *, rate: float, duration_s: float, seed: int = 1) -> Latencies:
    """Offer `rate` requests/s for `duration_s`, then wait for outstanding answers (at most 30 s)."""
    return asyncio.run(_run(base_url, shape, rate, duration_s, seed))


async def _run(base_url: str, shape: Shape, rate: float, duration_s: float, seed: int) -> Latencies:
    run = secrets.token_hex(4)
    idle: list[Connection] = []
    latencies: list[float] = []
    failed = 0
    late_s = 0.0
    start = time.perf_counter() + 0.1

    async def ask(number: int, due: float) -> None:
        nonlocal failed
        connection = idle.pop() if idle else Connection(base_url, shape.path)
        text = f"arrival {run} {number}"
        try:
            status, body = await connection.post(shape.body(text))
            right = status == 200 and shape.answer(body) == text
        except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError):
            connection.close()
            failed += 1
            return
        idle.append(connection)
        if right:
            latencies.append(time.perf_counter() - due)
        else:
            failed += 1

    tasks = set()
    for number, offset in enumerate(arrivals(rate, duration_s, seed)):
        due = start + offset
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        late_s = max(late_s, time.perf_counter() - due)
        tasks.add(asyncio.create_task(ask(number, due)))
    _, unanswered = await asyncio.wait(tasks, timeout=30.0)
    for task in unanswered:
        task.cancel()
    for connection in idle:
        connection.close()
    return _summary(rate, latencies, failed + len(unanswered), late_s)


def _summary(rate: float, latencies_s: list[float], failed: int, late_s: float) -> Latencies:
    if len(latencies_s) < 2:
        raise ValueError(f"{len(latencies_s)} answers are too few to speak of latencies ({failed} failed)")
    cuts = quantiles(latencies_s, n=100)
    return Latencies(rate, len(latencies_s), failed, cuts[49] * 1e3, cuts[94] * 1e3, cuts[98] * 1e3, late_s * 1e3)

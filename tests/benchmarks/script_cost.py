"""`python -m tests.benchmarks.script_cost`: processor time of one more script, and of one more request in a script.

A queue over several shards needs a call per shard where one shard needs one: for a flush, a claim, a finish, a look.
The calls come one after the other over TCP, as they do when each goes to another server, with one request and with 64;
the line through both has the two costs. `Redis` is the time of the server's main thread, with its log on; `client` is
that of the process that calls, Python's part included. Rounds go through all calls in turn; the result is the lower
quartile. The last line is the number of requests in a flush of one frontend with 256 connections, by the slow log of a
running stack. batching/capacity/shards.py has the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import click
from redis import Redis

from batching.claim.store import RedisBatchStore, Settled
from batching.fast_header import read_fast_header
from config.redis import Script
from config.tiers import Tier
from tasks.script_args import SUBMIT
from tests.benchmarks.bunch_system import Bunch
from tests.benchmarks.load import ensure_wrk, run_wrk
from tests.benchmarks.verify import verify_echo
from tests.fakes.door import MODEL, Door
from tests.valkey import PrivateValkey

SIZES = (1, 64)
_ECHO = b'{"status":"SUCCESS","result":"%s","task_id":"%s"}'
_TTL_MS = 60_000
_LOGGED = 2000
_CALLS = {1: 300, 64: 40}
Each = TypeVar("Each")


class Cost(NamedTuple):
    """Microseconds of one call."""

    redis_us: float
    client_us: float


class Line(NamedTuple):
    """Microseconds of a call, and of each request in it."""

    call_us: float
    request_us: float


def line(small_us: float, large_us: float) -> Line:
    """The line through the costs of a call with few requests and of one with many."""
    request_us = (large_us - small_us) / (SIZES[1] - SIZES[0])
    return Line(small_us - request_us * SIZES[0], request_us)


class Rig:
    """A frontend's outbox and a worker's store on one server. Each step leaves what the next one needs."""

    def __init__(self, redis: Redis, pid: int) -> None:
        self._ran = Path(f"/proc/{pid}/task/{pid}/schedstat")
        # Never full, so that no request is refused.
        self._door = Door(redis, max_queue_depth=10_000_000, queue_timeout_ms=_TTL_MS, request_timeout_ms=_TTL_MS)
        self._store = RedisBatchStore(redis, "w1")
        self._number = 0

    def close(self) -> None:
        self._door.close()

    def block(self, size: int, calls: int) -> dict[str, Cost]:
        """The mean cost of each call, over so many of them."""
        flushes = [[self._door.request(Tier.PAID, timeout_ms=_TTL_MS) for _ in range(size)] for _ in range(calls)]
        submit = self._timed(flushes, self._door.flush)
        look = self._timed(range(calls), lambda _: self._store.look(MODEL))
        first, self._number = self._number, self._number + calls
        claims = []
        claim = self._timed(
            range(first, first + calls), lambda number: claims.append(self._store.claim(MODEL, f"b{number}", size))
        )
        outcomes = []
        for each in claims:
            if len(each.entries) != size:
                raise RuntimeError(f"a claim of {size} brought {len(each.entries)}")
            headers = [read_fast_header(entry.message) for entry in each.entries]
            settled = [self._settled(place, header.task_id) for place, header in enumerate(headers, 1) if header]
            outcomes.append((each.batch_id, settled))
        finish = self._timed(outcomes, lambda pair: self._store.finish(*pair, last=True))
        return {"submit": submit, "look": look, "claim": claim, "finish": finish}

    def _settled(self, place: int, task_id: str) -> Settled:
        result = _ECHO % (b"x" * 60, task_id.encode())
        return Settled(place, task_id, _TTL_MS, "bunch:reply:door", result, announce=False)

    def _timed(self, over: Sequence[Each], call: Callable[[Each], object]) -> Cost:
        served, spent = self._served_ns(), time.thread_time_ns()
        for each in over:
            call(each)
        spent, served = time.thread_time_ns() - spent, self._served_ns() - served
        return Cost(served / len(over) / 1000, spent / len(over) / 1000)

    def _served_ns(self) -> int:
        return int(self._ran.read_text().split()[0])


def measure(rounds: int, calls: dict[int, int]) -> dict[str, tuple[Line, Line]]:
    """The lines of each call: Redis' and the client's."""
    valkey = PrivateValkey("--appendonly", "yes")
    valkey.start()
    seen: dict[tuple[str, int], list[Cost]] = {}
    try:
        with valkey.client() as redis:
            rig = Rig(redis, valkey.pid)
            for _ in range(rounds):
                for size in SIZES:
                    for name, cost in rig.block(size, calls[size]).items():
                        seen.setdefault((name, size), []).append(cost)
            rig.close()
    finally:
        valkey.stop()
    names = dict.fromkeys(name for name, _ in seen)
    return {
        name: (
            line(*(_quartile([cost.redis_us for cost in seen[name, size]]) for size in SIZES)),
            line(*(_quartile([cost.client_us for cost in seen[name, size]]) for size in SIZES)),
        )
        for name in names
    }


def flush_size(seconds: int, connections: int = 256) -> float:
    """The mean number of requests in a flush of one frontend: requests by the submit calls of the same time."""
    bunch = Bunch()
    with bunch.running("noop"):
        verify_echo(bunch.url, bunch.shape)
        client = Redis.from_url(bunch.redis_url())
        client.config_set("slowlog-log-slower-than", 0)
        client.config_set("slowlog-max-len", _LOGGED)
        before = _evalsha(client)
        load = run_wrk(ensure_wrk(), bunch.url, bunch.shape, connections=connections, duration_s=seconds)
        calls = _evalsha(client) - before
        logged = [bytes(each["command"]).split(b" ", 2) for each in client.slowlog_get(_LOGGED)]
        client.close()
    shas = [words[1].decode() for words in logged if words[0] == b"EVALSHA"]
    submits = shas.count(Script(SUBMIT.text).sha) / len(shas) * calls
    return load.requests / submits


def _evalsha(client: Redis) -> int:
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def _quartile(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 4]


@click.command(help=__doc__)
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(4))
def main(rounds: int) -> None:
    click.echo("| call | Redis, µs a call | µs a request | client, µs a call | µs a request |\n|---|---|---|---|---|")
    for name, lines in measure(rounds, _CALLS).items():
        click.echo(f"| {name} | " + " | ".join(f"{us:.1f}" for each in lines for us in each) + " |")
    click.echo(f"\nrequests in a flush: {flush_size(4):.1f}")


if __name__ == "__main__":
    main()

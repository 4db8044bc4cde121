"""`python -m tests.benchmarks.probes`: single numbers that the comparison does not give.

\b
    latency    what a system adds to the 50 ms model at half of its load, from an open loop
    pair       Bunch: 1,000 requests/s, one at a time against batched, from an open loop
    single     p50 with one connection and the no-op model
    redis      Bunch: Redis commands per request, counted with INFO commandstats
    log        Bunch: bytes per request in Redis' append-only log, by command
    waiting    Bunch: CPU of an idle frontend with 500 waiting callers
"""  # noqa: D301 - click wants the character itself: it keeps the lines below it as they are

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click
import psutil
import redis

from tests.benchmarks.bunch_system import Bunch
from tests.benchmarks.http_client import Connection
from tests.benchmarks.load import ensure_wrk, run_wrk
from tests.benchmarks.log_bytes import log_bytes
from tests.benchmarks.open_loop import arrivals, ideal_p50_ms, open_loop
from tests.benchmarks.registry import SYSTEMS
from tests.benchmarks.rounds import say_on_stderr
from tests.benchmarks.system import MODEL_LIMIT_RPS, System
from tests.benchmarks.verify import verify_echo

logger = logging.getLogger("tests.benchmarks")

# The commands with which clients run scripts; commands inside a script are counted separately.
_SCRIPT_CALLS = frozenset({"eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"})
_WAITING_CALLERS = 500
_WATCHED_S = 10.0


def redis_commands(duration_s: int, connections: int) -> dict[str, Any]:
    """Commands per request at `connections`: in all, script calls alone, and each command's own share."""
    bunch = Bunch()
    with bunch.running("noop"):
        verify_echo(bunch.url, bunch.shape)
        client = redis.Redis.from_url(bunch.redis_url())
        before = _calls(client)
        load = run_wrk(ensure_wrk(), bunch.url, bunch.shape, connections=connections, duration_s=duration_s)
        after = _calls(client)
        client.close()
    spent = {name: count - before.get(name, 0) for name, count in after.items()}
    spent = {name: count for name, count in spent.items() if count and name != "info"}
    return {
        "connections": connections,
        "requests": load.requests,
        "commands_per_request": sum(spent.values()) / load.requests,
        "script_calls_per_request": sum(spent.get(name, 0) for name in _SCRIPT_CALLS) / load.requests,
        "each": {
            name: round(count / load.requests, 4) for name, count in sorted(spent.items(), key=lambda item: -item[1])
        },
    }


def _calls(client: redis.Redis) -> dict[str, int]:
    stats: dict[str, dict[str, Any]] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}


def added_latency(system: System, duration_s: int) -> dict[str, Any]:
    """The wait of callers beyond the 50 ms model's own time, at half of its limit, and beyond an ideal batcher's."""
    limit = MODEL_LIMIT_RPS["50ms"]
    assert limit is not None
    with system.running("50ms"):
        verify_echo(system.url, system.shape)
        open_loop(system.url, system.shape, rate=limit / 2, duration_s=2.0, seed=2)
        measured = open_loop(system.url, system.shape, rate=limit / 2, duration_s=duration_s, seed=1)
    ideal_ms = ideal_p50_ms(list(arrivals(limit / 2, duration_s, 1)), batch_s=0.05, max_batch_size=64)
    return asdict(measured) | {
        "p50_over_model_ms": measured.p50_ms - 50.0,
        "ideal_p50_ms": ideal_ms,
        "p50_over_ideal_ms": measured.p50_ms - ideal_ms,
    }


def unbatched_and_batched(duration_s: int) -> dict[str, Any]:
    """The same model at the same load, which it can only sustain in batches: 2 ms per batch and 0.1 ms per item."""
    found = {}
    for name, max_batch_size in (("one at a time", 1), ("batched", 64)):
        bunch = Bunch()
        try:
            bunch.start_simulated(max_batch_size=max_batch_size, batch_ms=2, item_ms=0.1)
            verify_echo(bunch.url, bunch.shape)
            found[name] = asdict(open_loop(bunch.url, bunch.shape, rate=1000, duration_s=duration_s, seed=1))
        finally:
            bunch.stop()
    return found


def single_connection(system: System, duration_s: int) -> dict[str, Any]:
    """One caller and the no-op model."""
    with system.running("noop"):
        verify_echo(system.url, system.shape)
        run_wrk(ensure_wrk(), system.url, system.shape, connections=1, duration_s=2)
        return asdict(run_wrk(ensure_wrk(), system.url, system.shape, connections=1, duration_s=duration_s))


def waiting_frontend() -> dict[str, Any]:
    """CPU of the web processes, in % of one core, while 500 callers wait for a model that takes a minute."""
    bunch = Bunch()
    try:
        bunch.start_slow(batch_ms=60_000)
        processes = [psutil.Process(pid) for pid in bunch.web_pids()]
        processes += [child for process in list(processes) for child in process.children(recursive=True)]
        return asyncio.run(_watch(bunch, processes))
    finally:
        bunch.stop()


async def _watch(bunch: Bunch, processes: list[psutil.Process]) -> dict[str, Any]:
    callers = [Connection(bunch.url, bunch.shape.path) for _ in range(_WAITING_CALLERS)]
    try:
        for number, caller in enumerate(callers):
            await caller.send(bunch.shape.body(f"caller {number}"))
        await asyncio.sleep(3.0)
        answered = sum(caller.has_answer() for caller in callers)
        before, began = _cpu_s(processes), time.perf_counter()
        await asyncio.sleep(_WATCHED_S)
        spent, took = _cpu_s(processes) - before, time.perf_counter() - began
        answered_meanwhile = sum(caller.has_answer() for caller in callers) - answered
    finally:
        for caller in callers:
            caller.close()
    return {
        "waiting": _WAITING_CALLERS - answered,
        "answered_meanwhile": answered_meanwhile,
        "web_processes": len(processes),
        "cpu_percent_of_a_core": 100 * spent / took,
    }


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


_OF_ANY_SYSTEM: dict[str, Callable[[System, int], dict[str, Any]]] = {
    "latency": added_latency,
    "single": single_connection,
}
_OF_BUNCH: dict[str, Callable[[int], dict[str, Any]]] = {
    "redis": lambda duration_s: {
        str(connections): redis_commands(duration_s, connections) for connections in (1, 64, 256)
    },
    "log": lambda duration_s: {str(connections): log_bytes(duration_s, connections) for connections in (1, 64, 256)},
    "pair": unbatched_and_batched,
    "waiting": lambda _duration_s: waiting_frontend(),
}


@click.command(help=__doc__)
@click.argument("probes", nargs=-1, type=click.Choice([*_OF_ANY_SYSTEM, *_OF_BUNCH]))
@click.option("--system", "name", type=click.Choice(list(SYSTEMS)), default=Bunch.name, show_default=True)
@click.option("--duration", type=click.IntRange(1), default=8, show_default=True, help="Seconds of each load.")
def main(probes: tuple[str, ...], name: str, duration: int) -> None:
    say_on_stderr()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wanted = probes or (*_OF_ANY_SYSTEM, *(_OF_BUNCH if name == Bunch.name else ()))
    if name != Bunch.name and not set(wanted) <= set(_OF_ANY_SYSTEM):
        raise click.UsageError(f"only {' and '.join(_OF_ANY_SYSTEM)} can be asked of {name}")
    system = SYSTEMS[name]()
    system.prepare()
    results = {}
    for probe in wanted:
        logger.info("%s: %s", name, probe)
        results[probe] = (
            _OF_ANY_SYSTEM[probe](system, duration) if probe in _OF_ANY_SYSTEM else _OF_BUNCH[probe](duration)
        )
    click.echo(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

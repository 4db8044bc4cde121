"""`python -m tests.benchmarks.submit_cost`: µs of Redis' time per request in `submit.lua`, by enabled features.

A flush is a call as an outbox makes it, repeated under new ids on a Valkey of its own. The ways alternate in short
blocks, so that a drift of the machine affects all alike; the result is the lower quartile of the blocks
(`INFO commandstats`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import click
from redis import Redis

from batching.claim.registry import ModelThroughput, WorkerRegistry
from config.redis import Script
from config.tiers import Tier
from tasks.protocol.quota import Quota
from tests.fakes.door import KEYS, MODEL, Door
from tests.valkey import PrivateValkey

SIZES = (1, 64)
_WAYS: dict[str, tuple[str, int]] = {
    "admission=off": ("off", 0),
    "thresholds (the default)": ("drain", 0),
    "and a quota, one key": ("drain", 1),
    "and quotas, 20 keys": ("drain", 20),
}
_PIPELINE = 20


@dataclass
class Flush:
    """The call of one way."""

    script: str
    keys: Sequence[str]
    args: Sequence[Any]
    blocks_us: list[float] = field(default_factory=list)


class _Caught:
    """Replaces an outbox's connection to Redis, and records its calls."""

    flush: Flush

    def __init__(self, size: int) -> None:
        self.size = size

    def script(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> bytes:
        self.flush = Flush(script.source, keys, args)
        return b"0" * self.size

    def close(self) -> None:
        """Do nothing."""


def flush_of(redis: Redis, way: str, size: int) -> Flush:
    admission, keys = _WAYS[way]
    # Never reached, so that no request is refused.
    quotas = [Quota.of(f"k{number}", 1_000_000, 100_000) for number in range(keys)]
    door = Door(redis, admission=admission)
    line = _Caught(size)
    door._outbox._line = cast("Any", line)
    door.flush([door.request(Tier.PAID, quotas[number % keys] if keys else None) for number in range(size)])
    door.close()
    return line.flush


def run_block(redis: Redis, flush: Flush, number: int, flushes: int) -> float:
    """Mean µs per flush; the queue is emptied after each, as workers would do."""
    sha = redis.script_load(flush.script)
    # The fleet has a rate, so that thresholds are evaluated.
    WorkerRegistry(redis, 5.0).beat("w1", b"{}", {MODEL: ModelThroughput(2, 500.0, 0.02, 0.05)})
    queue = KEYS.queue(MODEL, Tier.PAID)
    redis.config_resetstat()
    for begin in range(0, flushes, _PIPELINE):
        pipe: Any = redis.pipeline(transaction=False)
        for each in range(_PIPELINE):
            key = KEYS.flush(f"{number}:{begin + each}")
            pipe.execute_command("EVALSHA", sha, len(flush.keys), key, *flush.keys[1:], *flush.args)
            pipe.delete(queue, KEYS.held(queue))
        pipe.execute()
    return float(redis.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])


@click.command(help=__doc__)
@click.option("--blocks", default=24, show_default=True, type=click.IntRange(4))
def main(blocks: int) -> None:
    valkey = PrivateValkey()
    valkey.start()
    try:
        with valkey.client() as redis:
            rows = {size: _measure(redis, size, blocks) for size in SIZES}
    finally:
        valkey.stop()
    click.echo("| requests in a flush | " + " | ".join(_WAYS) + " |")
    click.echo("|---" * (len(_WAYS) + 1) + "|")
    for size, costs in rows.items():
        click.echo(f"| {size} | " + " | ".join(f"{each / size:.1f}" for each in costs) + " |")


def _measure(redis: Redis, size: int, blocks: int) -> list[float]:
    flushes = {way: flush_of(redis, way, size) for way in _WAYS}
    for number in range(blocks):
        for place, flush in enumerate(flushes.values()):
            block = (number * len(flushes) + place) * 1000 + size
            flush.blocks_us.append(run_block(redis, flush, block, 400 if size == 1 else 60))
    return [sorted(flush.blocks_us)[blocks // 4] for flush in flushes.values()]


if __name__ == "__main__":
    main()

"""A key that asks for far more than its share, beside others of its tier: it is the one who waits, and is refused.

The same load as `python -m tests.benchmarks.greedy`, which measures; here it is short, and nothing is asserted that a
slow machine would miss.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from statistics import median

import pytest

from cli.loadgen.arrivals import Caller
from cli.loadgen.load import Answer, Load, Run
from config.keys import Shard
from tests.e2e.client import connected
from tests.e2e.stack import Stack
from tests.waiting import wait_until

BATCH, BATCH_S, ORDINARY = 4, 0.2, 2
TRIES = 3
CAPACITY_RPS = BATCH / BATCH_S
MODELS = f"""\
[models.gpu]
source = "workers.models.simulated:Simulated"
options = {{ batch_ms = {BATCH_S * 1000:.0f}, item_ms = 0 }}
max_batch_size = {BATCH}
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("greedy"), MODELS)
    # Only what is fair refuses here, not how often a key may ask.
    limits = {"paid_rpm": 1_000_000, "enterprise_rpm": 1_000_000}
    try:
        yield stack.start("--workers=1", "--web-workers=1", "--no-flower", auth="keys", **limits)
        stack.stop()
    finally:
        stack.kill()


def headers_of(stack: Stack) -> dict[str, str]:
    """A new key's."""
    made = json.loads(stack.manage("keys", "create", "--tier=paid", "--json").stdout)
    headers = {"Authorization": f"Bearer {made['secret']}"}
    with connected(stack.port) as api:
        wait_until(lambda: api.get("/v1/models", **headers).status == 200, what="the key is known")
    return headers


def has_rate(stack: Stack) -> bool:
    """Until then nobody is refused, and whoever comes first fills the queue."""
    with stack.redis() as redis:
        return any(float(pace.split(b";")[2]) > 0 for pace in redis.hvals(Shard().pace("gpu")))


def offer(stack: Stack, callers: Sequence[Caller], rps: float, seconds: float) -> dict[str, list[Answer]]:
    run = Run()
    load = Load(f"{stack.url}/v1/inference", lambda number: b'{"input": %d}' % number, 5.0, run, callers)
    asyncio.run(load.open(rps, duration_s=seconds))
    return {each.tier: [answer for answer in run.answers if answer.tier == each.tier] for each in callers}


def test_who_asks_for_too_much_is_refused_and_nobody_else(own: Stack) -> None:
    ordinary = [Caller(f"key {number}", headers_of(own)) for number in range(ORDINARY)]
    greedy = Caller("greedy", headers_of(own), weight=8 * ORDINARY)
    wait_until(lambda: offer(own, ordinary, CAPACITY_RPS, 0.5) and has_rate(own), what="its rate is known")
    # Where other work takes the machine from the model there may be too little of it for anybody, but not each time.
    for _ in range(TRIES):
        answers = offer(own, [*ordinary, greedy], 0.4 * CAPACITY_RPS * 9, 4.0)
        others = [answer for caller in ordinary for answer in answers[caller.tier]]
        if served(others) > 0.9:
            break
    assert served(others) > 0.9
    assert served(answers["greedy"]) < 0.6
    assert 429 in {answer.status for answer in answers["greedy"]}
    waited, mine = ([each.latency_s for each in some if each.status == 200] for some in (others, answers["greedy"]))
    assert median(waited) < median(mine)


def served(answers: Sequence[Answer]) -> float:
    return sum(answer.status == 200 for answer in answers) / len(answers)

"""The primary is lost, in four ways, while callers wait: each of them gets its own answer.

The long form has ten of each (`CHAOS_FAULTS`), and prints the time to the first answer.
"""

from __future__ import annotations

import json
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from cli.supervisor.probes import get
from tests.chaos.callers import Callers
from tests.chaos.conftest import FAULTS
from tests.e2e.stack import Stack
from tests.sentinels import Watched
from tests.waiting import wait_until

# With pauses of a second: as many requests a second.
CALLERS = 300 if FAULTS else 60
TIMEOUT_S = 10.0
TIMES = min(FAULTS, 10) or 1
CONFIG = """\
[models.steady]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 20, item_ms = 0.5 }
"""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120 + 120 * TIMES)]


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    each = Watched("--appendonly", "yes")
    try:
        yield each.start()
    finally:
        each.stop()


@pytest.fixture(scope="module")
def stack(watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    each = Stack(tmp_path_factory.mktemp("failover"), CONFIG)
    try:
        yield each.start(
            "--web-workers=2",
            "--workers=1",
            "--no-flower",
            redis_url=watched.url,
            # No rule may refuse a request here, and the queue's own limit is shorter than a failover.
            admission="off",
            queue_timeout_ms=10_000,
            # On a busy machine the sentinels take longer than the default.
            failover_wait_ms=int(TIMEOUT_S * 1000),
        )
        each.stop()
    finally:
        each.kill()


def kill(watched: Watched, primary: int) -> Callable[[], None]:
    watched.kill(primary)
    return lambda: watched.run(primary)


def hang(watched: Watched, primary: int) -> Callable[[], None]:
    watched.signal(primary, signal.SIGSTOP)
    return lambda: watched.signal(primary, signal.SIGCONT)


def cut_link(watched: Watched, primary: int) -> Callable[[], None]:
    watched.cut_off(primary)
    return lambda: watched.join(primary)


def planned(watched: Watched, primary: int) -> Callable[[], None]:
    watched.fail_over()
    return lambda: None


@pytest.mark.parametrize("fault", [kill, hang, cut_link, planned] if FAULTS else [kill])
def test_every_caller_gets_its_own_answer(
    watched: Watched, stack: Stack, fault: Callable[[Watched, int], Callable[[], None]]
) -> None:
    firsts: list[float] = []
    stalled: list[tuple[float, float]] = []
    with Callers(stack.url, "steady", count=CALLERS, pause_s=1.0, timeout_s=TIMEOUT_S) as callers:
        wait_until(lambda: len(callers.told) > CALLERS, what="the load runs")
        for _ in range(TIMES):
            wait_until(watched.is_whole, what="there is a replica to take over")
            primary, stalls = watched.primary, watched.stalls()
            began = time.perf_counter()
            repair = fault(watched, primary)
            first = _first_asked_after(callers, began)
            wait_until(lambda: watched.primary != primary, what="another server is the primary")  # noqa: B023
            wait_until(lambda: first() < float("inf"), what="somebody is answered")  # noqa: B023
            if watched.stalls() == stalls:
                firsts.append(first() - began)
            else:
                # Nothing to do with Bunch: no sentinel acted for half a minute.
                stalled.append((began, time.perf_counter() + TIMEOUT_S))
            time.sleep(0.5)
            repair()
        told = len(callers.told)
        wait_until(lambda: len(callers.told) > told + CALLERS, what="the load goes on")

    callers.check()
    counted = [each for each in callers.told if not any(a - TIMEOUT_S <= each.asked_at <= b for a, b in stalled)]
    codes = Counter(each.code for each in counted)
    print(
        f"{fault.__name__}: {len(firsts)} times, {len(counted)} requests, {dict(codes)}, first answer after "
        f"{statistics.median(firsts or [0.0]):.2f} s (median), {max(firsts, default=0.0):.2f} s (worst); longest wait "
        f"{max((each.took_s for each in counted), default=0.0):.2f} s; {len(stalled)} times the sentinels stood still"
    )
    assert set(codes) <= {"OK"}
    about = json.loads(get("127.0.0.1", stack.port, "/healthz")[1])
    assert (about["waiting"], about["resendable_bytes"]) == (0, 0)
    assert stack.all_run()
    assert all(row.restarts == 0 for row in stack.rows())


def _first_asked_after(callers: Callers, at: float) -> Callable[[], float]:
    def first() -> float:
        fresh = (each.told_at for each in list(callers.told) if each.asked_at >= at and each.code == "OK")
        return min(fresh, default=float("inf"))

    return first

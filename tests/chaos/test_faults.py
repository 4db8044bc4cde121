"""Steady load while everything that can die dies: each caller is told something true, in time, and nothing is left."""

from __future__ import annotations

import random
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from cli.supervisor.ports import free_port
from cli.supervisor.probes import get
from tests.chaos.callers import Callers
from tests.chaos.conftest import FAULTS
from tests.chaos.faults import ALL, DEADLY, LAST, SHORT, Fault, Scene, deregister, kill_frontend, kill_worker, table
from tests.chaos.stage import Stage
from tests.fakes.proxy import LossyProxy
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300 + 60 * FAULTS)]


@pytest.fixture(scope="module")
def far(stage: Stage) -> Iterator[LossyProxy]:
    port = urlsplit(stage.redis_url).port
    assert port is not None
    proxy = LossyProxy(port)
    proxy.start()
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def far_url(stage: Stage, far: LossyProxy) -> Iterator[str]:
    """A frontend that has the proxy before its Redis; a worker of that kind runs too."""
    # As the stage's own, password and all, but for the port.
    near_port, far_port = (urlsplit(each).port for each in (stage.redis_url, far.url))
    redis_url, port = stage.redis_url.replace(f":{near_port}/", f":{far_port}/"), free_port()
    away = [
        stage.beside("web", "far-web", redis_url=redis_url, http_port=port, web_workers=1),
        stage.beside("worker", "far-worker", "--name=far", redis_url=redis_url),
    ]
    try:
        wait_until(lambda: get("127.0.0.1", port, "/readyz")[0] == 200, what="the far frontend answers")
        wait_until(lambda: len(stage.executors()) == 3, what="the far worker is ready")
        yield f"http://127.0.0.1:{port}"
        for process in away:
            assert process.poll() is None, stage.last_logs()
            process.terminate()
        assert [process.wait(60) for process in away] == [0, 0]
    finally:
        for process in away:
            process.kill()
            process.wait()


def order(rng: random.Random) -> list[Fault]:
    """Every kind in turn, each round in another order."""
    if not FAULTS:
        return rng.sample(SHORT, len(SHORT))
    rounds = [rng.sample(ALL, len(ALL)) for _ in range(-(-FAULTS // len(ALL)))]
    return [*[each for one in rounds for each in one][:FAULTS], LAST]


def test_everybody_is_told_something_true_in_time(
    whole: Stage, far: LossyProxy, far_url: str, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(whole, far, rng)
    felt = []
    before = sum(row.restarts for row in whole.rows())
    with Callers(whole.url, "steady") as near, Callers(far_url, "steady", count=8) as remote:
        for fault in order(rng):
            felt.append(deregister(fault, scene, [near, remote]))
            whole.heal()

    with capsys.disabled():
        print(f"\n{table(felt)}\n{near.codes() + remote.codes()}")
    near.check()
    remote.check()
    wait_until(lambda: not whole.left_in_redis(), what=f"nothing is left: {whole.left_in_redis()}")
    wait_until(lambda: whole.waiting_callers() == [0, 0], what="no frontend has a waiter left")
    assert whole.lasting_keys() == set()
    assert near.codes()["OK"] > len(near.told) / 2
    # Without an answer at all: only those whose frontend was killed.
    assert {each.name for each in felt if "BROKEN" in each.codes} <= {kill_frontend.__name__}
    # Only those that were killed had to be started again.
    killed = sum(each.name in DEADLY for each in felt)
    assert sum(row.restarts for row in whole.rows()) == before + killed


def test_the_death_of_workers_is_not_felt_as_an_error(
    whole: Stage, far: LossyProxy, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(whole, far, rng)
    felt = []
    with Callers(whole.url, "steady") as callers:
        for _ in range(FAULTS // 4 or 2):
            felt.append(deregister(kill_worker, scene, [callers]))
            whole.heal()

    with capsys.disabled():
        print(f"\n{table(felt)}")
    callers.check()
    assert set(callers.codes()) == {"OK"}
    wait_until(lambda: not whole.left_in_redis(), what="nothing is left")

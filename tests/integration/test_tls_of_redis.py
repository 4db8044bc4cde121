"""One server, Sentinel and a cluster, all with TLS of Redis' own, and all of them ask for a client's certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from config.keys import Shard
from config.settings import load_settings
from tasks.protocol.ids import shard_of
from tests.clusters import Clustered, Mover
from tests.e2e.client import Api, connected
from tests.e2e.stack import PATIENT, Stack
from tests.fakes.tls import Authority
from tests.integration.test_redis_over_tls import WAYS, Way
from tests.secured import Tls, needs_redis
from tests.sentinels import Watched
from tests.waiting import wait_until

MODEL = '[models.echo]\nsource = "workers.models.echo:Echo"\n'
OPTIONS = ("--web-workers=1", "--workers=1", "--no-flower")
# However long a failover takes here.
HELD = {"failover_wait_ms": 25_000, "admission": "off", **PATIENT}
COUNT = 20

pytestmark = [needs_redis]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Tls.by(Authority(tmp_path_factory.mktemp("authority")))


@pytest.fixture(scope="module")
def watched(tls: Tls) -> Iterator[Watched]:
    each = Watched("--appendonly", "yes", tls=tls)
    try:
        yield each.start()
    finally:
        each.stop()


@pytest.mark.parametrize("form", ["rediss", "rediss+sentinel"])
@pytest.mark.parametrize("way", WAYS[:3])
def test_nobody_is_let_in_without_a_certificate(watched: Watched, tls: Tls, way: Way, form: str) -> None:
    one = f"rediss://:{watched.PASSWORD}@127.0.0.1:{watched.primary}/0"
    environ = {"BUNCH_REDIS_URL": one if form == "rediss" else watched.url, "BUNCH_REDIS_CA": str(tls.ca)}
    ours = {"BUNCH_REDIS_CERT": str(tls.certificate), "BUNCH_REDIS_KEY": str(tls.key)}
    assert way(load_settings(environ | ours, role="worker"))
    with pytest.raises(Exception, match=r"(?i)ssl|certificate|closed|reset|broken pipe|no sentinel answers"):
        way(load_settings(environ, role="worker"))


def test_a_stack_goes_on_when_its_primary_is_killed(watched: Watched, tls: Tls, tmp_path: Path) -> None:
    stack = Stack(tmp_path, MODEL)
    try:
        stack.start(*OPTIONS, redis_url=watched.url, **tls.settings, **HELD)
        with connected(stack.port) as api:
            assert answers(api, 0)
            # After a machine has stood still, sentinels watch for half a minute and do nothing.
            wait_until(watched.is_whole, what="the sentinels are awake")
            lost, kept = watched.primary, watched.other
            watched.kill(lost)
            assert answers(api, 1)
            assert watched.primary == kept
        watched.run(lost)
        assert stack.all_run()
        stack.stop()
    finally:
        stack.kill()


def test_a_stack_goes_on_when_slots_move_and_a_node_is_killed(watched: Watched, tls: Tls, tmp_path: Path) -> None:
    nodes, stack = Clustered("--appendonly", "yes", replicas=True, tls=tls), Stack(tmp_path, MODEL)
    try:
        nodes.start()
        stack.start(*OPTIONS, redis_url=nodes.url, broker_url=watched.url, shards=16, **tls.settings, **HELD)
        with connected(stack.port) as api:
            shards = answers(api, 0)
            # The question decides; another shard has it where that one does not answer yet.
            assert len(shards) > 3
            moving = Shard(f"{{s{min(shards)}}}").tag
            target = next(each for each in nodes.primaries() if each != nodes.owner(moving))
            mover = Mover(nodes, moving, target)
            mover.begin()
            mover.move_keys()
            mover.end()
            assert answers(api, 1)
            lost = nodes.owner(moving)
            nodes.kill(lost)
            assert answers(api, 2)
            wait_until(lambda: lost not in nodes.primaries(), what="its replica is the primary")
        assert stack.all_run()
        stack.stop()
    finally:
        stack.kill()
        nodes.stop()


def answers(api: Api, turn: int) -> set[int | None]:
    """Ask different questions; returns the shards that they were in."""
    asked = [f"{turn}: {number}" for number in range(COUNT)]
    told = [api.infer(each).json for each in asked]
    assert [each["output"] for each in told] == asked
    return {shard_of(each["task_id"]) for each in told}

"""`check` on a real cluster: what keeps Bunch from working there, and what does not but may not be intended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.run.check_servers import server_problems, server_warnings
from config.settings import Settings
from tests.clusters import Clustered
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

# As docs/security.md lists them for a single server.
RIGHTS = (
    "resetkeys", "resetchannels", "-@all", "~bunch*", "~celery*",
    "&bunch:*", "&celery-task-meta-*", "&__redis__:invalidate",
    "+@read", "+@write", "+@scripting", "+@pubsub", "+@connection", "+@transaction", "-@dangerous", "+info", "+time",
)  # fmt: skip


@pytest.fixture(scope="module")
def nodes() -> Iterator[Clustered]:
    """Three primaries without replicas."""
    each = Clustered()
    try:
        yield each.start()
    finally:
        each.stop()


def settings_of(nodes: Clustered, valkey: PrivateValkey, url: str = "", **more: object) -> Settings:
    return Settings(redis_url=url or nodes.url, broker_url=valkey.url, queue_timeout_ms=5000, **more)  # type: ignore[arg-type]


def test_a_node_without_a_replica_is_a_warning_unless_the_replica_is_promised(
    nodes: Clustered, valkey: PrivateValkey
) -> None:
    settings = settings_of(nodes, valkey)
    assert list(server_problems(settings)) == []
    said = [each.fix for each in server_warnings(settings) if each.key == "BUNCH_REDIS_URL"]
    assert [text.split(":")[0] for text in said] == ["has no replica of 127.0.0.1"] * 3
    promised = settings_of(nodes, valkey, durability="replica")
    # The broker has none either.
    assert sum("has no replica of" in each.fix for each in server_problems(promised)) == 3


def test_the_rights_of_a_user_are_tried_on_each_node(nodes: Clustered, valkey: PrivateValkey) -> None:
    for number in range(3):
        nodes.ask(number, "ACL", "SETUSER", "some", "on", ">pw", *RIGHTS)
    url = nodes.url.replace(f":{nodes.PASSWORD}@", "some:pw@")
    (first, *_) = server_problems(settings_of(nodes, valkey, url))
    assert "no node of the cluster answers" in first.fix
    for number in range(3):
        nodes.ask(number, "ACL", "SETUSER", "some", "+cluster|slots", "+cluster|nodes")
    assert list(server_problems(settings_of(nodes, valkey, url))) == []
    nodes.ask(1, "ACL", "SETUSER", "some", "-spublish")
    (problem,) = server_problems(settings_of(nodes, valkey, url))
    assert f"127.0.0.1:{nodes.ports[1]}" in problem.fix
    assert "'SPUBLISH' 'bunch:reply:check'" in problem.fix
    assert "pw@" not in str(problem)


def test_what_would_lose_requests_on_a_node_is_named_with_the_node(nodes: Clustered, valkey: PrivateValkey) -> None:
    nodes.ask(2, "CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    (problem,) = server_problems(settings_of(nodes, valkey))
    assert f"127.0.0.1:{nodes.ports[2]}, that evicts accepted requests" in problem.fix
    nodes.ask(2, "CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_a_node_in_a_plain_url_is_refused_with_what_to_write(nodes: Clustered, valkey: PrivateValkey) -> None:
    plain = f"redis://:{nodes.PASSWORD}@127.0.0.1:{nodes.ports[0]}/0"
    (problem,) = server_problems(Settings(redis_url=plain))
    assert "BUNCH_REDIS_URL=cluster://" in problem.fix


def test_slots_that_no_node_serves_and_a_node_that_is_lost_are_problems(
    nodes: Clustered, valkey: PrivateValkey
) -> None:
    """Last, since it leaves the cluster broken."""
    settings = settings_of(nodes, valkey)
    nodes.kill(2)
    (problem,) = server_problems(settings)
    assert f"has a primary that does not answer, 127.0.0.1:{nodes.ports[2]}" in problem.fix
    for number in range(2):
        nodes.ask(number, "CLUSTER", "DELSLOTSRANGE", 0, 99)
    wait_until(
        lambda: any("has 100 slots that no node serves" in each.fix for each in server_problems(settings)),
        what="the slots are missed",
    )

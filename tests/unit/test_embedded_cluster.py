"""The nodes that `up --cluster` starts with: the roles and slots of its last run, at new addresses."""

from __future__ import annotations

import re
from pathlib import Path

from cli.supervisor.embedded_cluster import PRIMARIES, EmbeddedCluster, clustered


def prepared(folder: Path, *, replicas: bool = False) -> EmbeddedCluster:
    cluster = clustered(folder, "second", 0, replicas=replicas)
    for server in cluster.servers:
        cluster.prepare(server)
    return cluster


def conf(folder: Path, number: int) -> Path:
    return folder / f"node-{number}/nodes.conf"


def words(folder: Path, number: int) -> dict[str, list[str]]:
    """Of each node's line, by id: the words behind the address."""
    lines = conf(folder, number).read_text().splitlines()
    return {line.split()[0]: line.split()[2:] for line in lines if not line.startswith("vars")}


def test_all_nodes_know_each_other_and_every_slot_is_served(tmp_path: Path) -> None:
    cluster = prepared(tmp_path, replicas=True)
    assert cluster.has_replicas
    for number, node in enumerate(cluster.nodes, 1):
        found = words(tmp_path, number)
        assert list(found) == [each.id for each in cluster.nodes]
        assert [each for each, (flags, *_) in found.items() if "myself" in flags] == [node.id]
        ranges = [each[6] for each in found.values() if len(each) > 6]
        assert ranges == ["0-5460", "5461-10921", "10922-16383"]
        assert [each[1] for each in found.values()][PRIMARIES:] == [each.id for each in cluster.nodes[:PRIMARIES]]


def test_roles_and_slots_outlive_a_run_and_addresses_do_not(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    old, text = first.nodes[1], conf(tmp_path, 1).read_text()
    # As the server wrote it: the slots of node 2 have moved, it was lost, and this one was promoted later.
    text = re.sub(f"(?m)^({old.id}.*) master - 0 0 2 connected.*$", r"\1 master,fail - 5 6 2 disconnected", text)
    text = text.replace("connected 0-5460", "connected 0-10921").replace("currentEpoch 3", "currentEpoch 8")
    text += f"{'0' * 40} 127.0.0.1:1@2 handshake - 0 0 0 connected\n"
    conf(tmp_path, 1).write_text(text)
    again = prepared(tmp_path)
    found = words(tmp_path, 1)
    assert [each.id for each in again.nodes] == [each.id for each in first.nodes] == list(found)
    assert found[old.id] == ["master", "-", "5", "6", "2", "disconnected"]
    assert found[again.nodes[0].id][-1] == "0-10921"
    written = conf(tmp_path, 1).read_text()
    assert "currentEpoch 8" in written
    assert all(node.address in written for node in again.nodes)
    assert not any(f":{node.port}@" in written for node in first.nodes)


def test_replicas_join_a_cluster_that_had_none_and_stay(tmp_path: Path) -> None:
    before = prepared(tmp_path)
    after = prepared(tmp_path, replicas=True)
    assert [each.id for each in after.nodes[:PRIMARIES]] == [each.id for each in before.nodes]
    assert len(words(tmp_path, 1)) == len(words(tmp_path, 6)) == 6
    assert prepared(tmp_path).has_replicas


def test_two_clusters_of_one_machine_are_strangers(tmp_path: Path) -> None:
    one, other = prepared(tmp_path / "one"), prepared(tmp_path / "other")
    assert not {each.id for each in one.nodes} & {each.id for each in other.nodes}
    assert one.url != other.url


def test_the_files_are_nobody_elses(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert conf(tmp_path, 1).stat().st_mode & 0o077 == 0
    assert (tmp_path / "cluster.id").stat().st_mode & 0o077 == 0

"""The primary that `up --sentinel` starts with: the one of its last run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.supervisor.embedded_sentinels import NAME, EmbeddedSentinels, watched
from cli.supervisor.embedded_valkey import EmbeddedValkey


@pytest.fixture
def ended(tmp_path: Path) -> EmbeddedSentinels:
    """A run that has ended without a failover."""
    embedded = watched(tmp_path, "second", 0)
    for server in embedded.servers:
        server.prepare()
    for port in embedded.sentinel_ports:
        embedded.prepare_sentinel(port)
    return embedded


def fail_over(ended: EmbeddedSentinels, *numbers: int) -> None:
    """What servers and sentinels have written when the old primary has not come back."""
    old, new = ended.servers
    rewrite(new.config_file, f"\nreplicaof 127.0.0.1 {old.port}", "")
    for number in numbers:
        path = ended.folder / f"sentinel/sentinel-{number}.conf"
        rewrite(path, f"monitor {NAME} 127.0.0.1 {old.port} ", f"monitor {NAME} 127.0.0.1 {new.port} ")
        rewrite(path, f"known-replica {NAME} 127.0.0.1 {new.port}", f"known-replica {NAME} 127.0.0.1 {old.port}")
        path.write_text(path.read_text() + f"sentinel config-epoch {NAME} 10\n")


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def next_primary(folder: Path) -> str:
    return watched(folder, "second", 0).servers[0].name


def test_the_first_server_is_the_first_primary(tmp_path: Path) -> None:
    assert next_primary(tmp_path) == "valkey"


def test_a_primary_that_was_not_replaced_is_the_primary_again(ended: EmbeddedSentinels) -> None:
    assert next_primary(ended.folder) == "valkey"


def test_a_promoted_server_is_the_primary_although_nobody_told_the_old_one(ended: EmbeddedSentinels) -> None:
    fail_over(ended, 1, 2, 3)
    assert next_primary(ended.folder) == "valkey-2"


def test_the_sentinel_that_knows_of_the_latest_failover_is_believed(ended: EmbeddedSentinels) -> None:
    for number in (1, 3):
        path = ended.folder / f"sentinel/sentinel-{number}.conf"
        path.write_text(path.read_text() + f"sentinel config-epoch {NAME} 9\n")
    fail_over(ended, 2)
    assert next_primary(ended.folder) == "valkey-2"


def test_a_server_that_has_run_without_sentinels_since_is_the_primary(ended: EmbeddedSentinels) -> None:
    fail_over(ended, 1, 2, 3)
    EmbeddedValkey(ended.folder, ended.servers[0].port + 1).prepare()
    assert next_primary(ended.folder) == "valkey"


def test_the_servers_files_tell_where_the_next_start_ended_before_the_sentinels(ended: EmbeddedSentinels) -> None:
    fail_over(ended, 1, 2, 3)
    # Of that start, first the replica's file is written, then the primary's.
    for server in reversed(watched(ended.folder, "second", 0).servers):
        server.prepare()
        assert next_primary(ended.folder) == "valkey-2"


def test_every_sentinel_knows_the_replica_from_the_start(ended: EmbeddedSentinels) -> None:
    line = f"sentinel known-replica {NAME} 127.0.0.1 {ended.servers[1].port}\n"
    for number in (1, 2, 3):
        assert line in (ended.folder / f"sentinel/sentinel-{number}.conf").read_text()

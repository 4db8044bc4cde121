"""`check` on what others on the same Redis do otherwise: Celery clients, and workers with another secret."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from cli.run.check_servers import seal_problems, separator_warnings
from config.keys import Shard
from config.secrets.message_keys import fingerprint, message_keys
from config.settings import ModelSettings, Settings
from tasks.fleet.registry_reader import WorkerRow
from tests.integration.celery_harness import close_client, plain_client
from tests.shards import redis_settings
from tests.valkey import PrivateValkey

SECRET = "a secret of all hosts"


@pytest.fixture
def valkey() -> Iterator[PrivateValkey]:
    server = PrivateValkey()
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize(("separator", "shown"), [(":", "':'"), ("\x06\x16", ""), ("|", "'|'")], ids=str)
def test_a_client_whose_priorities_nobody_looks_at_is_named(valkey: PrivateValkey, separator: str, shown: str) -> None:
    settings = Settings(**redis_settings(valkey.url), models={"m": ModelSettings(name="m", source="a:B")})
    client = plain_client(valkey.url, broker_transport_options={"sep": separator})
    client.send_task("bunch.infer", [1], queue="bunch.m.free", priority=7)
    close_client(client)
    found = [f"{each.key}: {each.fix}" for each in separator_warnings(settings)]
    assert len(found) == bool(shown)
    assert all("bunch.m.free" in each and shown in each for each in found)


@pytest.mark.parametrize(("theirs", "count"), [(SECRET, 0), ("another one, of one host", 1), ("", 0)])
def test_a_worker_with_another_secret_is_named(valkey: PrivateValkey, theirs: str, count: int) -> None:
    other = fingerprint(message_keys(Settings(models={}, message_secret=theirs)))
    with valkey.client() as redis:
        redis.zadd(Shard().workers(), {"w9": redis.time()[0] * 1000})
        redis.set(Shard().worker("w9"), msgspec.json.encode(WorkerRow("w9", "host", 1, 0.0, seal=other)))
    settings = Settings(**redis_settings(valkey.url), models={}, auth="keys", message_secret=SECRET)
    found = list(seal_problems(settings))
    assert [each.key for each in found] == ["BUNCH_MESSAGE_SECRET"] * count
    assert all("w9" in each.fix for each in found)
    assert SECRET not in str(found)

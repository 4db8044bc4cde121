"""`sentinel://` with real sentinels: who is connected to what, before, during and after a failover."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
from redis.exceptions import RedisError

from config.locator import failovers_of
from config.redis import Line, connect
from config.redis_url import sentinels_of
from config.sentinel import PrimaryConnection, SentinelError, primary_of
from config.settings import Settings
from tasks.app import make_app
from tests.sentinels import Watched
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    each = Watched()
    try:
        yield each.start()
    finally:
        each.stop()


def test_all_clients_are_led_to_the_primary(watched: Watched) -> None:
    settings = Settings(redis_url=watched.url)
    with connect(watched.url) as client, make_app(settings) as app, app.connection_for_write() as broker:
        client.set("by", "a client")
        assert app.backend.client.get("by") == b"a client"
        assert app.backend.client.execute_command("ROLE")[0] == b"master"
        channel = broker.default_channel
        assert channel.client.execute_command("ROLE")[0] == b"master"
        assert isinstance(channel.client.connection_pool.make_connection(), PrimaryConnection)
        # kombu's own poller uses another pool.
        assert isinstance(channel.async_pool.make_connection(), PrimaryConnection)
        app.send_task("some.task", queue="sent")
        assert client.llen("sent") == 1


def test_a_server_that_is_named_but_is_no_primary_is_refused(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    named = sentinels_of(watched.url)
    assert named is not None
    with connect(watched.url) as client:
        monkeypatch.setattr(primary_of(named), "address", lambda: ("127.0.0.1", watched.other))
        with pytest.raises(SentinelError, match="not a primary"):
            client.ping()


def test_whoever_waits_on_a_primary_that_hangs_goes_on_with_the_new_one(watched: Watched) -> None:
    """Last, since it changes who is the primary."""
    client = connect(watched.url, timeout_s=240.0)
    app = make_app(Settings(redis_url=watched.url))
    line, old, new, told = Line(client), watched.primary, watched.other, []
    line.command("SET", "n", 0)
    watched.signal(old, signal.SIGSTOP)

    def wait() -> None:
        # One call: it is cut, and sent once more.
        told.append(line.command("SET", "n", 1))

    began = time.monotonic()
    waiting = threading.Thread(target=wait)
    try:
        waiting.start()
        waiting.join(180)
        assert told == [b"OK"]
        # Far less than the client's timeout: nothing but the watch could end it.
        assert time.monotonic() - began < 180
        assert watched.primary == new
        # On a busy machine the new one may be taken for dead too.
        assert failovers_of(client) >= 1
        assert watched.ask(new, "GET", "n") == b"1"
        assert app.backend.client.get("n") == b"1"
    finally:
        watched.signal(old, signal.SIGCONT)
    # It comes back as a primary, and nobody goes there until it is a replica.
    wait_until(lambda: watched.role(old)[0] == b"slave", what="the old primary follows")
    with pytest.raises(RedisError):
        watched.ask(old, "SET", "n", "2")
    assert line.command("GET", "n") == b"1"
    app.close()

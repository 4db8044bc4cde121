"""Connections to Redis: bounded in time, repeated once where that is safe, and never where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kombu import Connection
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from cli.supervisor.ports import free_port
from config.redis import Line, Script, connect
from config.redis_url import celery_url
from tests.fakes.proxy import LossyProxy
from tests.valkey import PrivateValkey

ADD = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")


@pytest.fixture
def line(redis: Redis) -> Iterator[Line]:
    line = Line(redis)
    yield line
    line.close()


@pytest.fixture
def proxy(valkey: PrivateValkey, redis: Redis) -> Iterator[LossyProxy]:
    proxy = LossyProxy(valkey.port)
    proxy.start()
    yield proxy
    proxy.stop()


def test_a_script_is_loaded_when_redis_does_not_know_it(line: Line, redis: Redis) -> None:
    redis.script_flush()
    assert line.script(ADD, ["n"], [2]) == 2
    assert line.script(ADD, ["n"], [3]) == 5
    redis.script_flush()
    assert line.script(ADD, ["n"], [1]) == 6


def test_an_error_of_the_server_is_raised_and_harms_nothing(line: Line) -> None:
    line.command("SET", "text", "x")
    with pytest.raises(ResponseError):
        line.script(ADD, ["text"], [1])
    assert line.command("GET", "text") == b"x"


def test_a_line_survives_a_restart() -> None:
    valkey = PrivateValkey()
    valkey.start()
    line = Line(valkey.client())
    try:
        line.script(ADD, ["n"], [1])
        for _ in range(2):
            valkey.kill()
            with pytest.raises(RedisConnectionError):
                line.command("PING")
            valkey.start()
            assert line.script(ADD, ["n"], [1]) == 1
            valkey.kill()
            valkey.start()
            # Nobody noticed that it had been away.
            assert line.script(ADD, ["n"], [1]) == 1
    finally:
        line.close()
        valkey.stop()


def test_a_late_reply_does_not_answer_the_next_command(valkey: PrivateValkey, redis: Redis) -> None:
    client = connect(valkey.url, timeout_s=0.2)
    line = Line(client)
    with pytest.raises(RedisTimeoutError):
        line.command("BLPOP", "nothing-there", 0)
    redis.lpush("nothing-there", "late")
    assert line.command("ECHO", "mine") == b"mine"
    line.close()
    client.close()


def test_a_line_repeats_a_command_whose_connection_broke_once(proxy: LossyProxy, redis: Redis) -> None:
    client = connect(proxy.url)
    line = Line(client)
    line.command("PING")
    proxy.lose_reply_to(b"INCR")
    assert line.command("INCR", "n") == 2
    line.close()
    # The first command of a new connection is not repeated: Redis is not there.
    proxy.lose_reply_to(b"INCR")
    with pytest.raises(RedisConnectionError):
        line.command("INCR", "n")
    assert redis.get("n") == b"3"
    client.close()


def test_a_client_repeats_nothing(proxy: LossyProxy, redis: Redis) -> None:
    client = connect(proxy.url)
    client.ping()
    proxy.lose_reply_to(b"INCR")
    with pytest.raises(RedisConnectionError):
        client.incr("n")
    assert redis.get("n") == b"1"
    assert client.incr("n") == 2
    client.close()


def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(RedisConnectionError):
        client.ping()
    with pytest.raises(RedisConnectionError):
        Line(client).command("PING")


def test_callers_wait_for_a_connection_when_all_are_in_use(valkey: PrivateValkey, redis: Redis) -> None:
    client = connect(valkey.url, max_connections=2)
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda _: client.blpop("empty", 0.01), range(32))) == {None}
    client.close()
    assert client.ping()
    client.close()


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("s") / "r"
    valkey = PrivateValkey("--unixsocket", str(path))
    valkey.start()
    yield path
    valkey.stop()


@pytest.mark.parametrize("scheme", ["unix", "redis+socket"])
def test_unix_sockets_in_both_spellings(scheme: str, socket_path: Path) -> None:
    client = connect(f"{scheme}://{socket_path}?db=2")
    assert client.ping()
    line = Line(client)
    line.command("SET", "where", "here")
    line.close()
    assert client.get("where") == b"here"
    assert client.client_info()["db"] == 2
    client.close()


@pytest.mark.parametrize("scheme", ["unix", "redis+socket"])
def test_celery_takes_the_same_urls(scheme: str, socket_path: Path) -> None:
    with Connection(celery_url(f"{scheme}://{socket_path}?db=2")) as connection:
        assert connection.default_channel.client.client_info()["db"] == 2

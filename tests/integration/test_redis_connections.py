"""Connections to Redis: bounded in time, repeated once where that is safe, and never where it is not."""

from __future__ import annotations

import time
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
from config.redis import Call, Line, Script, connect
from config.redis_url import celery_url
from tests.fakes.proxy import LossyProxy
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

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


def test_a_script_that_waits_for_a_token_runs_with_one_and_without(line: Line, redis: Redis) -> None:
    call = Call(ADD, ["n"], [2])
    redis.script_flush()
    redis.rpush("bell", 1)
    assert line.when_rung("bell", 5.0, call) == 2
    assert not redis.exists("bell")
    assert line.when_rung("bell", 0.01, call) == 4
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(line.when_rung, "bell", 4.0, call)
        wait_until(lambda: redis.info("clients")["blocked_clients"] == 1)
        redis.rpush("bell", 1)
        assert waiting.result() == 6


def test_a_wait_without_a_token_ends_in_time_on_an_idle_server(line: Line) -> None:
    """By itself the server would find out in its cron, and each wait would take until the next one."""
    call = Call(ADD, ["n"], [1])
    waits_s = []
    for number in range(1, 11):
        began = time.monotonic()
        assert line.when_rung("bell", 0.02, call) == number
        waits_s.append(time.monotonic() - began)
    assert min(waits_s) >= 0.014
    assert min(waits_s[1:]) < 0.05


def test_an_error_of_the_wait_is_raised_and_harms_nothing(line: Line, redis: Redis) -> None:
    redis.set("bell", "no list")
    with pytest.raises(ResponseError):
        line.when_rung("bell", 5.0, Call(ADD, ["n"], [2]))
    # The reply to the script is not taken for that to the next command.
    assert line.command("GET", "bell") == b"no list"


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
    # Also for the next one's reply.
    client = connect(valkey.url, timeout_s=1.0)
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

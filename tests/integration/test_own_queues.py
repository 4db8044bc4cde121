"""No worker consumes from a queue that it cannot serve: not at its start, and not when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.celery_harness import (
    ECHO,
    PATIENCE_S,
    CeleryProcess,
    bunch_worker,
    close_client,
    infer,
    plain_client,
    wait_for_models,
)
from tests.shards import redis_environment
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

NODES = ("ops@here", "bunch@here")


def worker(folder: Path, valkey: PrivateValkey, app: str, queues: str, name: str) -> CeleryProcess:
    config = folder / f"{name}.toml"
    config.write_text(ECHO)
    return CeleryProcess(
        folder,
        name,
        (*("-A", app, "worker", "-Q", queues, "-P", "threads", "-c", "1", "-n", f"{name}@here"), "--without-mingle"),
        **redis_environment(valkey.url),
        BUNCH_CONFIG=str(config),
        BUNCH_STATE_DIR=str(folder / "var"),
    )


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    server = PrivateValkey()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("queues")


@pytest.fixture(scope="module")
def client(folder: Path, valkey: PrivateValkey) -> Iterator[Any]:
    """The queues of an ops worker and of one that serves `echo`."""
    ours, ops = bunch_worker(folder, valkey, ECHO), worker(folder, valkey, "tasks.app", "bunch.ops", "ops")
    app = plain_client(valkey.url)
    try:
        ours.start()
        ops.start()
        with valkey.client() as redis:
            wait_for_models(redis, "echo")
        wait_until(lambda: len(app.control.ping(timeout=0.5)) == 2, "both answer")
        yield app
    finally:
        close_client(app)
        ops.stop()
        ours.stop()


def told(client: Any, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
    replies = client.control.broadcast(command, arguments, reply=True, timeout=PATIENCE_S, limit=2)
    return {node: reply for each in replies for node, reply in each.items()}


@pytest.mark.parametrize("queue", ["bunch.echo.paid", "bunch.echo.free\x06\x163", "bunch.later.enterprise", "celery"])
def test_a_queue_that_is_added_everywhere_is_taken_by_nobody(client: Any, queue: str) -> None:
    replies = told(client, "add_consumer", {"queue": queue})
    assert set(replies) == set(NODES)
    assert all("error" in reply for reply in replies.values()), replies
    results = [infer(client, n).apply_async() for n in range(30)]
    assert [each.get(timeout=PATIENCE_S) for each in results] == list(range(30))
    names = {each["name"] for each in client.control.inspect(["ops@here"], PATIENCE_S).active_queues()["ops@here"]}
    assert names == {"bunch.ops"}


def test_the_ops_worker_leaves_its_own_queue_and_takes_it_again(client: Any) -> None:
    ping = client.signature("bunch.ping", options={"queue": "bunch.ops"})
    assert "error" in told(client, "cancel_consumer", {"queue": "bunch.echo.paid"})["ops@here"]
    for command in ("cancel_consumer", "add_consumer"):
        assert "ok" in told(client, command, {"queue": "bunch.ops"})["ops@here"]
    assert ping.apply_async().get(timeout=PATIENCE_S) == "pong"


@pytest.mark.parametrize("command", ["reset_faults", "pool_restart", "tune"])
def test_the_ops_worker_says_that_it_serves_no_model(client: Any, command: str) -> None:
    arguments = {} if command == "pool_restart" else {"model": "echo"}
    replies = told(client, command, arguments)
    assert replies["ops@here"] == {"ok": "serves no model"}
    assert "ok" in replies["bunch@here"]


@pytest.mark.parametrize(
    ("app", "queues"),
    [("tasks.app", "bunch.echo.paid"), ("tasks.app", "bunch.ops,celery"), ("workers.app", "bunch.ops")],
)
def test_a_worker_that_is_started_on_others_queues_ends_at_once(
    folder: Path, valkey: PrivateValkey, app: str, queues: str
) -> None:
    process = worker(folder, valkey, app, queues, "wrong")
    process.log.unlink(missing_ok=True)
    assert process.start().process.wait(PATIENCE_S) == 1
    assert "this worker cannot serve" in process.said()

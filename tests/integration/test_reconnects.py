"""Connections to Redis break: other workers forget or lose things then (known of celery-batches and kombu)."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
from celery import Celery

from tests.integration.celery_harness import infer
from tests.integration.celery_rig import Rig, running
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("celery")) as rig:
        yield rig


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def cut(rig: Rig) -> None:
    """Every connection but the one that says so."""
    for kind in ("normal", "pubsub"):
        rig.redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


@pytest.fixture
def sender(rig: Rig) -> Iterator[Celery]:
    """A client that waits for nothing: its own subscriptions would be cut as well."""
    app = Celery("sender", broker=rig.url, set_as_current=False)
    yield app
    app.close()


def test_what_waits_and_what_comes_is_answered_after_each_reconnect(rig: Rig, sender: Celery, name: str) -> None:
    """clokep/celery-batches#107: requests in the buffer stay there, since its timer belonged to the old connection."""
    before = queues(rig)
    assert before > {"bunch.echo.paid"}
    for number in range(10):
        waiting = [infer(sender, f"{name}-{number}-{n}").apply_async() for n in range(3)]
        cut(rig)
        waiting += [infer(sender, f"{name}-{number}-{n}").apply_async() for n in range(3, 6)]
        keys = [f"celery-task-meta-{each.id}" for each in waiting]
        wait_until(lambda keys=keys: all(_ended(rig, key) for key in keys), "all six are answered")
        outputs = [json.loads(rig.redis.get(key))["result"] for key in keys]
        assert outputs == [f"{name}-{number}-{n}" for n in range(6)]
    # celery/celery PR #10345: after a reconnect it consumes other queues than before.
    assert queues(rig) == before


def queues(rig: Rig) -> set[str]:
    """The queues that our worker consumes, asked by another process: kombu shares connections, which are cut here."""

    def ask() -> str:
        # Of this one: the plain worker may be the only one to answer in the second that is the default.
        which = ("--destination=bunch@here", "--timeout=20")
        command = [sys.executable, "-m", "celery", f"--broker={rig.url}", "inspect", *which, "active_queues", "--json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False).stdout

    replies = json.loads(wait_until(ask, "remote control answers"))
    return {each["name"] for each in replies["bunch@here"]}


def _ended(rig: Rig, key: str) -> bool:
    raw = rig.redis.get(key)
    return raw is not None and json.loads(raw)["status"] == "SUCCESS"

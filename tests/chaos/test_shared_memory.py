"""Large payloads in shared memory while every role is killed: each is answered for what was sent, and none is left."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import psutil
import pytest

from batching.blobs.local_files import SHARED_MEMORY
from batching.blobs.store import GRACE_MS
from tests.chaos.callers import HONEST
from tests.chaos.conftest import FAULTS, long_only
from tests.e2e.stack import Stack
from tests.waiting import wait_until

KILLS = FAULTS or 3
CALLERS = 4
SIZE = 300_000
TIMEOUT_S = 20.0
CONFIG = """\
[models.digest]
source = "tests.chaos.models:Digest"
input_type = "bytes"
max_batch_size = 4
"""
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300 + 20 * KILLS)]


@pytest.fixture(params=["memory", pytest.param("second", marks=long_only)])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    each = Stack(tmp_path, CONFIG)
    try:
        yield each.start(
            "--web-workers=2",
            "--workers=2",
            "--no-flower",
            admission="off",
            durability=request.param,
            lease_ttl_ms=5000,
            queue_timeout_ms=int(TIMEOUT_S * 1000),
            request_timeout_ms=int(TIMEOUT_S * 1000),
        )
    finally:
        each.kill()


def folder_of(stack: Stack) -> Path:
    """The one that its roles share, as a worker has it open."""
    opened = (each.readlink() for each in Path(f"/proc/{stack.pids('worker')[0]}/fd").iterdir() if each.is_dir())
    (found,) = (each for each in opened if each.is_relative_to(SHARED_MEMORY) and each.is_dir())
    return found


def payloads(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if not each.name.startswith(".")]


class Callers:
    """Several callers at once, each with one request after the other, until they are stopped."""

    def __init__(self, url: str) -> None:
        self.codes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._url = f"{url}/v1/inference?model=digest"
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(CALLERS)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for each in self._threads:
            each.join()

    def _call(self, number: int) -> None:
        draw = random.Random(number)
        while not self._stopped.is_set():
            value = draw.randbytes(16) * (SIZE // 16)
            try:
                answer = httpx.post(
                    self._url, content=value, headers={"Content-Type": "application/octet-stream"}, timeout=60.0
                )
            except httpx.HTTPError:
                # Its frontend was killed.
                self.codes["BROKEN"] += 1
                time.sleep(0.05)
                continue
            told = answer.json()
            self.codes[told.get("error", "OK")] += 1
            meant = {"first": value[:8].hex(), "last": value[-8:].hex(), "size": len(value)}
            if answer.status_code == 200 and told["output"] != meant:
                self.wrong.append(f"{told['output']} for {meant}")
            elif answer.status_code != 200 and told["error"] not in HONEST:
                self.wrong.append(answer.text)


def kill(stack: Stack, role: str, rng: random.Random) -> None:
    workers = stack.pids("worker")
    if role == "web":
        frontends = stack.frontends()
        rng.choice(frontends).kill() if frontends else None
        return
    victims = workers
    if role == "executor":
        victims = [each.pid for pid in workers for each in psutil.Process(pid).children() if pid]
    if victims:
        os.kill(rng.choice(victims), signal.SIGKILL)


def is_whole(stack: Stack) -> bool:
    try:
        return stack.all_run() and len(stack.frontends()) == 2 and httpx.get(f"{stack.url}/readyz").status_code == 200
    except (httpx.HTTPError, psutil.Error, ValueError):
        return False


def test_no_payload_is_lost_mixed_up_or_left(stack: Stack, rng: random.Random) -> None:
    folder = folder_of(stack)
    roles = (["web", "worker", "executor"] * KILLS)[:KILLS]
    with Callers(stack.url) as callers:
        for role in roles:
            wait_until(lambda: is_whole(stack), what="the stack is whole")
            done = callers.codes["OK"]
            wait_until(lambda done=done: callers.codes["OK"] > done + 2 * CALLERS, what="callers are answered")
            # In memory alone, the moment in which nothing is there is short.
            wait_until(lambda: payloads(folder) != [], what="payloads go through shared memory")
            try:
                kill(stack, role, rng)
            except psutil.NoSuchProcess:
                continue
    print(dict(callers.codes))
    assert not callers.wrong
    # A caller breaks off with its frontend alone: what it has sent is never lost.
    assert callers.codes["BROKEN"] <= CALLERS * roles.count("web")
    assert set(callers.codes) <= {"OK", "BROKEN", *HONEST}
    # Whatever a killed frontend has written and not queued is past its end after this.
    latest = time.time() + TIMEOUT_S + GRACE_MS / 1000
    wait_until(lambda: all(each.stat().st_mtime + 60.0 <= latest + 5 for each in payloads(folder)))
    assert len(payloads(folder)) <= CALLERS * roles.count("web")
    with stack.redis() as redis:
        wait_until(lambda: len(redis.keys("bunch:blob:*")) <= CALLERS * roles.count("web"))
    # All at once; then nothing is left of the folder either.
    stack.kill()
    wait_until(lambda: not folder.exists(), what="the reaper has removed what all of them have left")

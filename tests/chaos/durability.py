"""Kills the server at random moments while requests are accepted, and counts those that are gone. For a process that
gevent has patched; `test_durability` starts it: LEVEL ROUNDS SEED, a line of figures on standard output.
"""

from __future__ import annotations

# Before anything else is imported, as gunicorn's gevent worker does.
from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import random  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from pathlib import Path  # noqa: E402

import gevent  # noqa: E402

from config.redis import connect  # noqa: E402
from config.settings import ModelSettings, Settings  # noqa: E402
from tasks.client.client import Client  # noqa: E402
from tasks.client.submission import Submission  # noqa: E402
from tasks.errors import BunchError  # noqa: E402
from tasks.protocol.caller import ANYBODY  # noqa: E402
from tests.gevent_scenarios.frontend_fixture import KEYS  # noqa: E402
from tests.valkey import PrivateValkey  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

MODEL = "nobody"
SENDERS = 8
PERSISTENCE = {
    "memory": ("--appendonly", "no"),
    "second": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "disk": ("--appendonly", "yes", "--appendfsync", "always"),
    "replica": ("--appendonly", "yes", "--appendfsync", "everysec"),
}


class Senders:
    """Greenlets that send requests to poll for, one after the other, and note which were accepted."""

    def __init__(self, url: str, level: str) -> None:
        models = {MODEL: ModelSettings(name=MODEL, source="tests:Nothing", max_queue_depth=10**6, cache=False)}
        settings = Settings(redis_url=url, models=models, admission="off", durability=level)  # type: ignore[arg-type]
        self._client = Client(settings, connect(url))
        self.accepted: list[str] = []

    @contextmanager
    def sending(self) -> Iterator[None]:
        self._client.start()
        wait_until(lambda: self._client.router.connected)
        greenlets = [gevent.spawn(self._send) for _ in range(SENDERS)]
        try:
            yield
        finally:
            gevent.killall(greenlets)
            self._client.stop()

    def _send(self) -> None:
        while True:
            pending = self._client.submit(Submission(MODEL, next(iter(ANYBODY.values())), b'"poll"', 60.0, waits=False))
            try:
                self.accepted.append(self._client.receipt(pending))
            except BunchError:
                gevent.sleep(0.01)


def lost_of(level: str, random_s: random.Random) -> tuple[int, int]:
    """Accepted, and of those lost, in one life of a server that is killed."""
    server = PrivateValkey(*PERSISTENCE[level], "--repl-diskless-sync-delay", "0")
    replica = PrivateValkey("--replicaof", "127.0.0.1", str(server.port))
    server.start()
    survivor = server
    try:
        if level == "replica":
            replica.start()
            survivor = replica
            with replica.client() as behind:
                wait_until(lambda: behind.execute_command("ROLE")[3] == b"connected", what="the replica follows")
        senders = Senders(server.url, level)
        with senders.sending():
            wait_until(lambda: len(senders.accepted) > SENDERS)
            gevent.sleep(random_s.uniform(0.0, 0.3))
            server.kill()
            accepted = list(senders.accepted)
        if level == "replica":
            # With its disk; what is left is the replica.
            shutil.rmtree(server._folder.name)
            Path(server._folder.name).mkdir()
            with replica.client() as behind:
                behind.replicaof("NO", "ONE")
        else:
            server.start()
        with survivor.client() as client:
            wait_until(client.ping)
            return len(accepted), len(accepted) - client.exists(*map(KEYS.result, accepted))
    finally:
        server.stop()
        if level == "replica":
            replica.stop()


def main() -> None:
    level, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    random_s = random.Random(seed)
    found = [lost_of(level, random_s) for _ in range(rounds)]
    print(json.dumps({"kills": rounds, "accepted": sum(a for a, _ in found), "lost": sum(b for _, b in found)}))


if __name__ == "__main__":
    main()

"""A primary, its replica, and three sentinels that watch them: what `sentinel://` is for."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, cast

from redis import Redis
from redis.exceptions import RedisError

from cli.supervisor.ports import free_port
from config.redis import connect
from tests.secured import Tls, as_arguments, listening, program_of, url_of
from tests.valkey import UNTITLED
from tests.waiting import wait_until

NAME = "tested"
# The sentinels of a laptop: a primary that does not answer for this long is replaced.
DOWN_AFTER_MS = 500
# A sentinel synchronises its file at each step of a failover, and answers nobody until the disk has it.
ANSWERS_WITHIN_S = 30.0


class Watched:
    """Two data servers, `ports[0]` the primary at first, and sentinels. All have one password, and TLS if asked for."""

    PASSWORD = "of-the-tests"
    # Whom the sentinels and the replica are to the data servers.
    WATCHER = "watcher"

    def __init__(self, *arguments: str, sentinels: int = 3, tls: Tls | None = None, program: str = "") -> None:
        self._tls = tls
        # Of the servers that are started from now on.
        self.program = program or program_of(tls)
        self.ports = [free_port(), free_port()]
        self.sentinel_ports = [free_port() for _ in range(sentinels)]
        self._arguments = arguments
        self._folder = tempfile.TemporaryDirectory(prefix="bunch-test-sentinel-")
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        form = "rediss+sentinel" if self._tls else "sentinel"
        return f"{form}://:{self.PASSWORD}@{hosts}/{NAME}/0?sentinel_password={self.PASSWORD}"

    def start(self) -> Self:
        self.run(self.ports[0])
        self.run(self.ports[1], "--replicaof", "127.0.0.1", str(self.ports[0]))
        wait_until(lambda: self.role(self.ports[1])[3] == b"connected", what="the replica follows")
        for port in self.sentinel_ports:
            self._run_sentinel(port)
        wait_until(self._all_know, what="the sentinels know each other and the replica")
        return self

    def run(self, port: int, *more: str) -> None:
        """Start a data server, again on its port and data."""
        folder = Path(self._folder.name, str(port))
        folder.mkdir(exist_ok=True)
        self._spawn(
            port, *as_arguments(listening(self._tls, port)), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
            "--requirepass", self.PASSWORD, "--masteruser", self.WATCHER, "--masterauth", self.PASSWORD,
            "--user", self.WATCHER, "on", f">{self.PASSWORD}", "allkeys", "allchannels", "allcommands",
            "--repl-diskless-sync-delay", "0",
            *self._arguments, *more,
        )  # fmt: skip

    def _run_sentinel(self, port: int) -> None:
        path = Path(self._folder.name, f"sentinel-{port}.conf")
        own = "".join(f"{name} {value}\n" for name, value in listening(self._tls, port).items())
        path.write_text(
            f"{own}bind 127.0.0.1\ndir {self._folder.name}\n"
            f'requirepass "{self.PASSWORD}"\nsentinel sentinel-pass "{self.PASSWORD}"\n'
            f"sentinel monitor {NAME} 127.0.0.1 {self.ports[0]} {len(self.sentinel_ports) // 2 + 1}\n"
            f"sentinel auth-user {NAME} {self.WATCHER}\n"
            f'sentinel auth-pass {NAME} "{self.PASSWORD}"\n'
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\nsentinel failover-timeout {NAME} 2000\n"
        )
        self._spawn(port, str(path), "--sentinel")

    def _spawn(self, port: int, *arguments: str) -> None:
        log = Path(self._folder.name, f"{port}.log")
        self.processes[port] = subprocess.Popen(
            [self.program, *arguments, "--logfile", str(log), *UNTITLED],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def client(self, port: int, timeout_s: float = 1.0) -> Redis:
        return connect(url_of(self._tls, f":{self.PASSWORD}@127.0.0.1:{port}/0"), timeout_s=timeout_s)

    def role(self, port: int) -> list[Any]:
        with suppress(RedisError), self.client(port) as client:
            return list(client.execute_command("ROLE"))
        return [b"", 0, 0, b""]

    def ask(self, port: int, *command: str) -> Any:
        with self.client(port, ANSWERS_WITHIN_S) as client:
            return client.execute_command(*command)

    @property
    def primary(self) -> int:
        """The port that the sentinels name which have heard of the latest failover: one tells the others of it."""
        return max(map(self._named_by, self.sentinel_ports))[1]

    def _named_by(self, sentinel: int) -> tuple[int, int]:
        """The number of the failover that this sentinel has heard of, and the port of the primary that it made.

        In one go; and the address that clients get, since a sentinel that leads a failover has its number before it
        has the other address in its own description.
        """
        with self.client(sentinel, ANSWERS_WITHIN_S) as client, client.pipeline(transaction=False) as both:
            both.execute_command("SENTINEL", "MASTER", NAME)
            both.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
            about, (_, port) = both.execute()
        return int(_plain(about)["config-epoch"]), int(port)

    @property
    def other(self) -> int:
        return next(port for port in self.ports if port != self.primary)

    def is_whole(self) -> bool:
        """Return whether the other data server follows the primary, as the sentinels see it too."""
        try:
            link = self.role(self.other)
            return link[0] == b"slave" and link[3] == b"connected" and self._all_know()
        except RedisError:
            return False

    def _all_know(self) -> bool:
        def seen(port: int) -> bool:
            about = self._about_primary(port)
            return (
                int(about["num-slaves"]) == 1
                and int(about["num-other-sentinels"]) == len(self.sentinel_ports) - 1
                and "down" not in about["flags"]
                and self._could_be_promoted(port)
                and self._is_awake(port)
            )

        with suppress(RedisError):
            named = {self._named_by(port) for port in self.sentinel_ports}
            return len(named) == 1 and all(map(seen, self.sentinel_ports))
        return False

    def _about_primary(self, sentinel: int) -> dict[str, str]:
        return _plain(self.ask(sentinel, "SENTINEL", "MASTER", NAME))

    def _could_be_promoted(self, port: int) -> bool:
        (about,) = map(_plain, self.ask(port, "SENTINEL", "REPLICAS", NAME))
        return about["master-link-status"] == "ok" and "down" not in about["flags"]

    def stalls(self) -> int:
        """The number of times that a sentinel found its machine, or its clock, standing still (TILT). For 30 s it then
        watches and does nothing: on a machine with too much other work there is no failover.
        """
        logs = (Path(self._folder.name, f"{port}.log") for port in self.sentinel_ports)
        return sum(each.read_text(errors="replace").count("+tilt") for each in logs if each.exists())

    def _is_awake(self, port: int) -> bool:
        with self.client(port) as client:
            return not int(cast("dict[str, Any]", client.info("sentinel"))["sentinel_tilt"])

    def signal(self, port: int, number: signal.Signals) -> None:
        os.kill(self.processes[port].pid, number)

    def cut_off(self, port: int) -> None:
        """Break the link between a data server and those who watch and follow it; others reach it as before."""
        with self.client(port) as client:
            client.execute_command("ACL", "SETUSER", self.WATCHER, "off")
            client.execute_command("CLIENT", "KILL", "USER", self.WATCHER)

    def join(self, port: int) -> None:
        """Undo `cut_off`."""
        self.ask(port, "ACL", "SETUSER", self.WATCHER, "on")

    def fail_over(self) -> None:
        """Ask for a planned failover."""
        self.ask(self.sentinel_ports[0], "SENTINEL", "FAILOVER", NAME)

    def kill(self, port: int) -> None:
        self.processes[port].kill()
        self.processes[port].wait()

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait()
        self._folder.cleanup()


def _plain(about: Any) -> dict[str, str]:
    """A sentinel's answer, parsed by redis-py or as pairs."""
    pairs = about if isinstance(about, dict) else dict(zip(about[::2], about[1::2], strict=True))
    return {_text(name): _text(value) for name, value in pairs.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

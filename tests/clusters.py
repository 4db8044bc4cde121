"""A real cluster of the embedded server: three primaries, each with a replica if asked for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from cli.supervisor.embedded_cluster import PRIMARIES, Node, nodes_file
from cli.supervisor.ports import free_port
from config.redis import connect
from tests.secured import Tls, as_arguments, listening, program_of, url_of
from tests.valkey import UNTITLED
from tests.waiting import wait_until

# A node that does not answer for this long is replaced, or marked as down.
NODE_TIMEOUT_MS = 800
# A node that writes to a busy disk may answer nobody for a while.
ANSWERS_WITHIN_S = 30.0


class Clustered:
    """Nodes `0` to `2` are primaries at first, `3` to `5` their replicas. One password for all; TLS if asked for."""

    PASSWORD = "of-the-tests"

    def __init__(
        self, *arguments: str, replicas: bool = False, host: str = "127.0.0.1", tls: Tls | None = None
    ) -> None:
        self.host = host
        self._tls = tls
        self._arguments = arguments
        self._folder = tempfile.TemporaryDirectory(prefix="bunch-test-cluster-")
        count = PRIMARIES * (2 if replicas else 1)
        self.ports = [free_port() for _ in range(count)]
        self._bus = [free_port() for _ in range(count)]
        self.nodes = [
            Node(self._folder.name, number, host, port, bus, number % PRIMARIES if number >= PRIMARIES else None)
            for number, (port, bus) in enumerate(zip(self.ports, self._bus, strict=True))
        ]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        form = "rediss+cluster" if self._tls else "cluster"
        return f"{form}://:{self.PASSWORD}@{','.join(f'{self._name}:{port}' for port in self.ports)}"

    @property
    def _name(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def start(self) -> Self:
        for number in range(len(self.nodes)):
            folder = self.folder(number)
            folder.mkdir()
            nodes = nodes_file(self.nodes, self.nodes[number], PRIMARIES)
            # Redis 7.0 has no more than the name after an address.
            (folder / "nodes.conf").write_text(re.sub(r",,tls-port=\S*", "", nodes) if self._tls else nodes)
            self.run(number)
        wait_until(self.is_whole, what="the cluster is up")
        return self

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self.processes.values()]

    def kill_all(self) -> None:
        for number in self.processes:
            self.kill(number)

    def run_all(self) -> None:
        """Start all nodes again, on their ports and data."""
        for number in range(len(self.nodes)):
            self.run(number)
        wait_until(self.is_whole, what="the cluster is up again")

    def flush(self) -> None:
        for number in self.primaries():
            self.ask(number, "FLUSHALL")

    def folder(self, number: int) -> Path:
        return Path(self._folder.name, str(number))

    def run(self, number: int) -> None:
        """Start a node, again on its ports and data."""
        self.processes[number] = subprocess.Popen(
            [
                program_of(self._tls), "--bind", self.host, *as_arguments(self._listening(number)),
                "--cluster-enabled", "yes", "--cluster-port", str(self._bus[number]),
                "--dir", str(self.folder(number)), "--save", "",
                "--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-require-full-coverage", "no",
                "--cluster-allow-replica-migration", "no", "--cluster-replica-validity-factor", "0",
                "--repl-diskless-sync-delay", "0", "--requirepass", self.PASSWORD, "--masterauth", self.PASSWORD,
                "--enable-debug-command", "yes", "--logfile", str(self.folder(number) / "log"),
                *UNTITLED, *self._arguments,
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _listening(self, number: int) -> dict[str, str]:
        return listening(self._tls, self.ports[number]) | ({"tls-cluster": "yes"} if self._tls else {})

    def client(self, number: int, timeout_s: float = 1.0) -> Redis:
        url = url_of(self._tls, f":{self.PASSWORD}@{self._name}:{self.ports[number]}/0")
        return connect(url, timeout_s=timeout_s)

    def ask(self, number: int, *command: object, timeout_s: float = ANSWERS_WITHIN_S) -> Any:
        with self.client(number, timeout_s) as client:
            return client.execute_command(*command)

    def role(self, number: int) -> list[Any]:
        with suppress(RedisError):
            return list(self.ask(number, "ROLE", timeout_s=1.0))
        return [b""]

    def is_whole(self) -> bool:
        """Return whether all nodes find the cluster well, and all replicas follow."""
        for number in range(len(self.nodes)):
            try:
                about, role = self.ask(number, "CLUSTER", "INFO", timeout_s=1.0), self.role(number)
            except RedisError:
                return False
            known = [line.split() for line in self._lines(number)]
            if _text(about, "cluster_state") != "ok" or any("fail" in each[2] for each in known):
                return False
            if role[0] == b"slave" and role[3] != b"connected":
                return False
        return True

    def _lines(self, number: int) -> list[str]:
        with self.client(number) as client:
            # redis-py's own parser would make a dictionary of it.
            client.response_callbacks.clear()
            return str(client.execute_command("CLUSTER", "NODES").decode()).splitlines()

    def number_of(self, port: int) -> int:
        return self.ports.index(port)

    def owner(self, tag: str) -> int:
        """The node that has a shard, as itself and most others say."""
        slot = key_slot(tag.encode())
        votes: dict[int, int] = {}
        for number in range(len(self.nodes)):
            if self.processes[number].poll() is not None:
                continue
            with suppress(RedisError):
                for first, last, primary, *_ in self._slots(number):
                    if first <= slot <= last:
                        votes[self.number_of(primary[1])] = votes.get(self.number_of(primary[1]), 0) + 1
        return max(votes, key=lambda each: votes[each])

    def _slots(self, number: int) -> list[Any]:
        with self.client(number) as client:
            client.response_callbacks.clear()
            return list(client.execute_command("CLUSTER", "SLOTS"))

    def primaries(self) -> list[int]:
        """The nodes that have slots, as most nodes say."""
        votes: Counter[tuple[int, ...]] = Counter()
        for number, process in self.processes.items():
            if process.poll() is None:
                with suppress(RedisError):
                    found = {self.number_of(primary[1]) for _, _, primary, *_ in self._slots(number)}
                    votes[tuple(sorted(found))] += 1
        return list(votes.most_common(1)[0][0])

    def fail_over(self, number: int) -> None:
        """Ask for a planned failover of this primary."""
        port = self.ports[number]

        def replicas() -> list[int]:
            roles = [self.role(each) for each in range(len(self.ports))]
            return [each for each, role in enumerate(roles) if role[0] == b"slave" and role[2] == port]

        # One may follow only now, or be busy with its disk.
        self.ask(wait_until(replicas, what="it has a replica")[0], "CLUSTER", "FAILOVER")

    def move(self, tag: str, target: int) -> None:
        """Move a shard at once (Valkey 9: CLUSTER MIGRATESLOTS); returns when it has moved."""
        slot, source = key_slot(tag.encode()), self.owner(tag)
        self.ask(source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.nodes[target].id)
        wait_until(lambda: self.owner(tag) == target, what="the slot has moved")

    def signal(self, number: int, what: signal.Signals) -> None:
        os.kill(self.processes[number].pid, what)

    def cut_off(self, number: int) -> None:
        """Break the link between a node and the others; clients reach it as before."""
        self.ask(number, "DEBUG", "DROP-CLUSTER-PACKET-FILTER", "-2")

    def join(self, number: int) -> None:
        """Undo `cut_off`."""
        self.ask(number, "DEBUG", "DROP-CLUSTER-PACKET-FILTER", "-1")
        # No network loses one packet of a connection that goes on, and the nodes allow for none: whose answer to a ping
        # was dropped is never asked again, and stays suspected for ever.
        for each in self.nodes:
            if each is not self.nodes[number]:
                self.ask(number, "DEBUG", "CLUSTERLINK", "KILL", "ALL", each.id)

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait()
        self._folder.cleanup()


class Mover:
    """Moves a shard key by key, as `redis-cli --cluster reshard` does, in steps that a test may look in between."""

    def __init__(self, nodes: Clustered, tag: str, target: int) -> None:
        self._nodes, self._tag, self._target = nodes, tag, target
        self._slot, self._source = key_slot(tag.encode()), nodes.owner(tag)

    def begin(self) -> None:
        nodes, slot = self._nodes, self._slot
        nodes.ask(self._target, "CLUSTER", "SETSLOT", slot, "IMPORTING", nodes.nodes[self._source].id)
        nodes.ask(self._source, "CLUSTER", "SETSLOT", slot, "MIGRATING", nodes.nodes[self._target].id)

    def move_keys(self) -> int:
        """Move what there is; returns how many."""
        nodes, moved = self._nodes, 0
        while names := nodes.ask(self._source, "CLUSTER", "GETKEYSINSLOT", self._slot, 10):
            nodes.ask(
                self._source, "MIGRATE", nodes.host, nodes.ports[self._target], "", 0, 5000,
                "AUTH", nodes.PASSWORD, "KEYS", *names,
            )  # fmt: skip
            moved += len(names)
        return moved

    def end(self) -> None:
        for number in (self._target, self._source):
            self._nodes.ask(number, "CLUSTER", "SETSLOT", self._slot, "NODE", self._nodes.nodes[self._target].id)


def _text(about: Any, name: str) -> str:
    if isinstance(about, dict):
        return str(about[name])
    found = dict(line.split(":") for line in about.decode().split())
    return str(found[name])

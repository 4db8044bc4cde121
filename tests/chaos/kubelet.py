"""A cluster of one machine, as far as a rolling restart needs one: pods, their kubelet, and services in front of them.

    new pod ─▶ ready by its probe ─▶ endpoint, `LAG_S` later
    old pod ─▶ no endpoint, `LAG_S` later ┐
               preStop, `PRE_STOP_S`      ┴▶ TERM ─▶ ends with 0 within its grace period

Connections stay with the pod that they were made to, as behind a Service. Workers have no endpoint, and no preStop;
there the old pod goes before the new one comes, since it holds the GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.supervisor.ports import free_port
from tests.e2e.stack import ROOT
from tests.shards import inherited_environment
from tests.waiting import wait_until

PERIOD_S = 1.0
# An endpoint changes with a probe, and reaches the nodes later.
LAG_S = 0.6
PRE_STOP_S = 1.0
GRACE_S = 60.0
_READ = 65536


class Pod:
    """One role of the checkout `root`, in a process and with a state folder of its own."""

    def __init__(
        self, role: str, number: int, folder: Path, config: Path, environment: Mapping[str, str], root: Path = ROOT
    ) -> None:
        self.role = role
        self._root = root
        self._probe_at = 0.0
        self.port = free_port()
        self._log = folder / f"{role}{number}.log"
        self._command = [sys.executable, str(root / "manage.py")]
        self._config = f"--config={config}"
        self._environment = {
            **inherited_environment(),
            **environment,
            "BUNCH_STATE_DIR": str(folder / f"{role}{number}"),
            f"BUNCH_{'GRPC' if role == 'grpc' else 'HTTP'}_PORT": str(self.port),
        }
        named = [f"--name=worker{number}"] if role == "worker" else []
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._command, role, self._config, *named],
                cwd=root, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def is_ready(self) -> bool:
        """The probe of the manifests, once in its period; but for gRPC, which tells its own health."""
        if time.monotonic() < self._probe_at:
            return False
        self._probe_at = time.monotonic() + PERIOD_S
        assert self.process.poll() is None, self.log[-4000:]
        if self.role == "web":
            with contextlib.suppress(OSError):
                return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5).status == 200)
            return False
        if self.role == "grpc":
            return _serves(self.port)
        probe = [*self._command, "health", "worker", "--ready", self._config]
        return (
            subprocess.run(probe, cwd=self._root, env=self._environment, capture_output=True, check=False).returncode
            == 0
        )

    def end(self) -> None:
        """TERM, and wait for its grace period. Raises AssertionError if it did not end by itself, and with 0."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.role} is still there:\n{self.log[-4000:]}") from None
        assert code == 0, self.log[-4000:]

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Service:
    """One address in front of pods; each new connection goes to one of its endpoints."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._endpoints: tuple[int, ...] = ()
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0
        node.run(self._listen())

    def publish(self, pods: Sequence[Pod]) -> None:
        """The ready pods; the node hears of it later."""
        ports = tuple(each.port for each in pods)
        self._node.loop.call_soon_threadsafe(self._node.loop.call_later, LAG_S, setattr, self, "_endpoints", ports)

    def has(self, pods: Sequence[Pod]) -> bool:
        return self._endpoints == tuple(each.port for each in pods)

    async def close(self) -> None:
        self._server.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            port = random.choice(self._endpoints)
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pass_on(reader, upstream_writer), _pass_on(upstream_reader, writer))
        writer.close()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_READ):
            target.write(data)
            await target.drain()
    # An end in one direction is the end: neither HTTP nor gRPC has half a connection.
    target.close()


class Node:
    """The event loop of services and load, in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def stop(self) -> None:
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Kubelet:
    """Starts and replaces pods. `environment` are settings of all; `config` is their bunch.toml."""

    def __init__(self, folder: Path, config: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._config, self._environment = folder, config, environment
        self.node = Node()
        self.services = {role: Service(self.node) for role in ("web", "grpc")}
        self.pods: dict[str, list[Pod]] = {"worker": [], "web": [], "grpc": []}
        # The checkout that new pods are of.
        self.root = ROOT
        self._started = 0

    def create_all(self, *roles: str) -> None:
        """Start a pod for each, and return when they can be reached."""
        for role in roles:
            self.create(role)
        wait_until(lambda: all(each.has(self.pods[role]) for role, each in self.services.items() if self.pods[role]))

    def create(self, role: str) -> Pod:
        """Start a pod and return it once it is ready, with its endpoint on the way."""
        self._started += 1
        pod = Pod(role, self._started, self._folder, self._config, self._environment, self.root)
        self.pods[role].append(pod)
        wait_until(pod.is_ready, what=lambda: pod.log[-4000:])
        self._publish(role)
        return pod

    def delete(self, role: str) -> None:
        """End the oldest pod of a role."""
        pod = self.pods[role].pop(0)
        try:
            if role != "worker":
                # Both begin at once: who ends first is a matter of the two times.
                self._publish(role)
                threading.Event().wait(PRE_STOP_S)
            pod.end()
        finally:
            pod.kill()

    def replace(self, role: str) -> None:
        """One step of a rolling restart."""
        if role == "worker":
            self.delete(role)
            self.create(role)
        else:
            self.create(role)
            self.delete(role)

    def logs(self) -> str:
        return json.dumps({each.role: each.log[-1500:] for pods in self.pods.values() for each in pods}, indent=1)

    def end(self) -> None:
        for each in self._all():
            each.kill()
        for service in self.services.values():
            self.node.run(service.close())
        self.node.stop()

    def _all(self) -> Iterator[Pod]:
        for pods in self.pods.values():
            yield from pods

    def _publish(self, role: str) -> None:
        if role in self.services:
            self.services[role].publish(self.pods[role])


def _serves(port: int) -> bool:
    import grpc
    from grpc_health.v1 import health_pb2

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        try:
            return bool(check(health_pb2.HealthCheckRequest(), timeout=5).status == 1)
        except grpc.RpcError:
            return False

"""Probes that tell whether a child has started, and aftermaths that clean up after one that has died.

Neither ever raises. A probe is repeated until it reports `ready`, an aftermath until it reports that it is done.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from redis import Redis
from redis.exceptions import BusyLoadingError, RedisError

from batching.claim.sharded_registry import ShardedRegistry
from tasks.fleet.registry_reader import Fleet, WorkerRow

TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a probe. `error` is set when the child lives but a part of it did not start."""

    ready: bool
    detail: str = ""
    error: str = ""


# The argument is the pid of the process.
Probe: TypeAlias = Callable[[int], Look]


def alive(_: int) -> Look:
    """For a program whose only sign of life is that it runs."""
    return Look(ready=True)


def answers_ping(redis: Redis) -> Probe:
    """Ready when Valkey has loaded its data and answers."""

    def probe(_: int) -> Look:
        try:
            return Look(ready=bool(redis.ping()))
        except BusyLoadingError:
            return Look(ready=False, detail="loading the dataset")
        except RedisError:
            return Look(ready=False)

    return probe


def serves_slots(redis: Redis) -> Probe:
    """Ready when a node of a cluster answers, and finds the cluster well."""
    answers = answers_ping(redis)

    def probe(pid: int) -> Look:
        look = answers(pid)
        try:
            about = cast("dict[str, str]", redis.cluster("INFO")) if look.ready else {}
        except RedisError:
            return Look(ready=False)
        well = about.get("cluster_state") == "ok"
        return look if well or not look.ready else Look(ready=False, detail="waiting for the other nodes")

    return probe


def answers_tcp(host: str, port: int) -> Probe:
    """Ready when a connection is accepted."""

    def probe(_: int) -> Look:
        try:
            socket.create_connection((host, port), timeout=TIMEOUT_S).close()
        except OSError:
            return Look(ready=False)
        return Look(ready=True)

    return probe


def answers_http(host: str, port: int, path: str, *, tls: bool = False) -> Probe:
    """Ready when a GET is answered with 200."""

    def probe(_: int) -> Look:
        status, body = get(host, port, path, tls=tls)
        return Look(ready=status == 200, detail=reason_of(body))

    return probe


def models_loaded(fleet: Fleet, *, in_frontend: bool = False) -> Probe:
    """Ready when the worker with this pid, or the one `in_frontend`, has registered each of its models as ready."""

    def probe(pid: int) -> Look:
        try:
            # The frontend's pid is that of its master, which has no executors.
            found = (row for row in fleet.workers() if (row.queues if in_frontend else row.pid == pid))
            row = min(found, key=lambda row: row.age_ms, default=None)
        except RedisError as error:
            return Look(ready=False, detail=str(error))
        return Look(ready=False) if row is None else _look_at_models(row)

    return probe


def leases_given_back(registry: ShardedRegistry) -> Callable[[int], bool]:
    """Requeue the leases of a dead worker at once; otherwise that would take the lease TTL."""

    def aftermath(pid: int) -> bool:
        try:
            registry.bury(pid)
        except RedisError:
            return False
        return True

    return aftermath


def _look_at_models(row: WorkerRow) -> Look:
    late = [each for each in row.models if not each.is_served]
    # While an executor is started again, its row still has the error of the previous start.
    errors = {each.model: each.error for each in late if each.error and each.state == "failed"}
    if errors:
        text = "\n".join(f"model {model} did not start:\n{error}" for model, error in errors.items())
        return Look(ready=False, detail=f"{', '.join(errors)} did not start", error=text)
    if late:
        return Look(ready=False, detail="loading " + ", ".join(sorted({each.model for each in late})))
    return Look(ready=bool(row.models))


def get(host: str, port: int, path: str, *, tls: bool = False) -> tuple[int, bytes]:
    """Status and body; status 0 when there was no answer. A certificate is not verified: no secret is sent."""
    at = reachable(host)
    connection = (
        http.client.HTTPSConnection(at, port, timeout=TIMEOUT_S, context=_unverified())
        if tls
        else http.client.HTTPConnection(at, port, timeout=TIMEOUT_S)
    )
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def reachable(host: str) -> str:
    """The address under which this machine reaches a server that listens on `host`."""
    if host in {"", "0.0.0.0"}:  # noqa: S104
        return "127.0.0.1"
    return "::1" if host == "::" else host


def url(host: str, port: int, *, tls: bool = False) -> str:
    name = reachable(host)
    return f"http{'s' if tls else ''}://{f'[{name}]' if ':' in name else name}:{port}"


def reason_of(body: bytes) -> str:
    """The message in the body of an error; empty when there is none."""
    try:
        document = json.loads(body)
    except ValueError:
        return ""
    return str(document.get("message", "")) if isinstance(document, dict) else ""

"""The composition root of `up`: turns settings and options into a supervisor with its children."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from batching.claim.place_lines import PlaceLines
from batching.claim.sharded_registry import ShardedRegistry
from cli.supervisor import ports, role_commands
from cli.supervisor.embedded_cluster import EmbeddedCluster, clustered
from cli.supervisor.embedded_sentinels import RESTART_AFTER_S, EmbeddedSentinels, watched
from cli.supervisor.embedded_valkey import EmbeddedValkey
from cli.supervisor.probes import (
    TIMEOUT_S,
    Probe,
    alive,
    answers_http,
    answers_ping,
    answers_tcp,
    get,
    leases_given_back,
    models_loaded,
    serves_slots,
    url,
)
from cli.supervisor.reaper.reaper_client import Reaper
from cli.supervisor.state import ProcessRow, UpState, wanted
from cli.supervisor.supervised_process import ProcessSpec
from cli.supervisor.supervisor import Report, Supervisor
from config.environ import Role, child_environment
from config.redis import connect
from config.secrets.private_files import make_private
from config.settings import Settings
from config.shards import open_places
from tasks.fleet.registry_reader import Fleet
from tasks.observability import metrics
from tasks.observability.batch_log import BatchLog

_DEFAULT_FLOWER_PORT = 5555
# Time beyond its own graceful timeout in which a process must notice that it is over.
_STOP_MARGIN_S = 5.0
# The time that `ready` waits for Flower, which listens a second or two after the first request can be served.
_FLOWER_PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line. `workers` is the number in each pool, or without pools."""

    workers: int = 1
    flower: bool = True
    grpc: bool = False
    sentinel: bool = False
    cluster: bool = False
    replicas: bool = False
    give_up_on_errors: bool = False


class Stack:
    """The processes of one machine. Constructing checks the ports and starts nothing.

    Raises:
        PortTaken: another program listens on one of the ports.
    """

    def __init__(self, settings: Settings, options: Options) -> None:
        state_dir = Path(settings.state_dir).resolve()
        http_port = ports.require_free(settings.http_host, settings.http_port, "--port or BUNCH_HTTP_PORT")
        self.state_dir = state_dir
        self.watched = (
            watched(state_dir, settings.durability, settings.redis_max_memory_bytes) if options.sentinel else None
        )
        self.valkey = None if settings.redis_url or self.watched else _embedded(settings, state_dir)
        self.cluster = _clustered(settings, state_dir, options) if options.cluster else None
        self.settings = msgspec.structs.replace(
            settings,
            http_port=http_port,
            flower_port=_flower_port(settings) if options.flower else settings.flower_port,
            grpc_port=_grpc_port(settings) if options.grpc else settings.grpc_port,
            redis_url=self._redis_url(settings),
            broker_url=settings.broker_url or (self.valkey.tcp_url if self.valkey else ""),
            state_dir=str(state_dir),
        )
        self.options = options
        self._workers: dict[tuple[str, int], ProcessSpec] = {}
        self._served_at = 0.0
        self.url = url(settings.http_host, http_port, tls=bool(settings.tls_cert))
        self.flower_url = url(settings.flower_host, self.settings.flower_port) if options.flower else None

    def _redis_url(self, settings: Settings) -> str:
        if self.cluster or self.watched:
            return (self.cluster or self.watched).url  # type: ignore[union-attr]
        return self.valkey.data_url if self.valkey else settings.redis_url

    def supervisor(self, reaper: Reaper, report: Report) -> Supervisor:
        make_private(self.state_dir / "log")
        return Supervisor(
            self._specs(),
            reaper,
            report,
            ready=self._is_ready,
            give_up_on_errors=self.options.give_up_on_errors,
        )

    def follow(self, supervisor: Supervisor, now: float) -> None:
        """Adjust the number of workers to the wanted numbers, where one was set."""
        asked = wanted(self.state_dir)
        if asked and self.settings.mode == "durable":
            numbers = {pool: asked.get(pool, self.options.workers) for pool in self._pools}
            supervisor.resize("worker", self._fleet(numbers), now)

    def state(self, supervisor: Supervisor) -> UpState:
        """The content of `up.json`."""
        return UpState(
            processes=tuple(
                ProcessRow(each.spec.role, each.pid, each.state.value, each.restarts, each.spec.name, each.spec.pool)
                for each in supervisor.children
            ),
            url=self.url,
            flower_url=self.flower_url,
            redis_url=self.valkey.tcp_url if self.valkey and not self.cluster else self.settings.redis_url,
            broker_url=self.settings.control_url,
            config_file=self.settings.config_file,
            mode=self.settings.mode,
        )

    def _is_ready(self) -> bool:
        settings = self.settings
        if get(settings.http_host, settings.http_port, "/readyz", tls=bool(settings.tls_cert))[0] != 200:
            return False
        if self.options.grpc and not answers_tcp(settings.grpc_host, settings.grpc_port)(0).ready:
            return False
        if not self.options.flower:
            return True
        # Flower should show tasks from the start; but requests are served without it, too.
        now = time.monotonic()
        self._served_at = self._served_at or now
        listens = get(settings.flower_host, settings.flower_port, "/healthcheck")[0] == 200
        return listens or now - self._served_at > _FLOWER_PATIENCE_S

    def _specs(self) -> list[ProcessSpec]:
        settings = self.settings
        drain_s = self._drain_s
        web_answers = answers_http(settings.http_host, settings.http_port, "/healthz", tls=bool(settings.tls_cert))
        if settings.mode == "collocated":
            web_answers = models_loaded(Fleet(self._redis, lease_ttl_s=settings.lease_ttl_s), in_frontend=True)
        specs = [
            self._spec(
                "web", "web", role_commands.web(settings), stop_stage=0, stop_timeout_s=drain_s, probe=web_answers
            ),
            self._spec("ops", "ops", role_commands.ops(settings), stop_stage=2, stop_timeout_s=drain_s),
        ]
        if settings.mode == "durable":
            specs = [*self._fleet(dict.fromkeys(self._pools, self.options.workers)), *specs]
        if self.options.grpc:
            listens = answers_tcp(settings.grpc_host, settings.grpc_port)
            command = role_commands.grpc()
            specs.append(self._spec("grpc", "grpc", command, stop_stage=0, stop_timeout_s=drain_s, probe=listens))
        if self.options.flower:
            flower_answers = answers_http(settings.flower_host, settings.flower_port, "/healthcheck")
            flower = self._spec(
                "flower",
                "flower",
                role_commands.flower(settings),
                stop_stage=3,
                stop_timeout_s=5.0,
                probe=flower_answers,
            )
            # Flower is a page for people, so requests are served without it. It asks the workers for their queues once,
            # at its start, and never shows those of workers that start later.
            specs.append(replace(flower, optional=True, start_stage=2))
        if self.valkey:
            specs.insert(0, self._server(self.valkey, self._redis))
        if self.watched:
            specs = [*self._watched(self.watched), *specs]
        if self.cluster:
            specs = [*self._nodes(self.cluster), *specs]
        return specs

    def _server(self, valkey: EmbeddedValkey, client: Redis) -> ProcessSpec:
        return self._server_of(valkey, valkey.prepare(), answers_ping(client))

    def _server_of(self, valkey: EmbeddedValkey, command: tuple[str, ...], probe: Probe) -> ProcessSpec:
        spec = self._spec("redis", valkey.name, command, stop_stage=9, stop_timeout_s=30.0, probe=probe)
        # On TERM it writes the rest of its log to disk and exits.
        environment = {**valkey.environment, **spec.environment}
        return replace(spec, environment=environment, start_stage=0, hasty_signal=signal.SIGTERM)

    def _watched(self, embedded: EmbeddedSentinels) -> Iterator[ProcessSpec]:
        # The replica's file is written first: if `up` ends in between, there are not two files of a primary.
        specs = [self._server(each, _client(each.tcp_url)) for each in reversed(embedded.servers)]
        for server, spec in zip(embedded.servers, reversed(specs), strict=True):
            replaced = partial(embedded.names_another, server)
            yield replace(spec, restart_after_s=RESTART_AFTER_S, restart_early=replaced)
        for number, port in enumerate(embedded.sentinel_ports, 1):
            answers = answers_ping(_client(embedded.sentinel_url(port)))
            command = embedded.prepare_sentinel(port)
            # They go first, or they would replace the primary while all is stopped.
            sentinel = self._spec(
                "redis", f"sentinel-{number}", command, stop_stage=8, stop_timeout_s=5.0, probe=answers
            )
            yield replace(sentinel, start_stage=0)

    def _nodes(self, embedded: EmbeddedCluster) -> Iterator[ProcessSpec]:
        for server in embedded.servers:
            spec = self._server_of(server, embedded.prepare(server), serves_slots(_client(server.tcp_url)))
            if embedded.has_replicas:
                replaced = partial(embedded.is_replaced, server)
                spec = replace(spec, restart_after_s=RESTART_AFTER_S, restart_early=replaced)
            yield spec

    @property
    def _pools(self) -> tuple[str, ...]:
        """The pools; one without a name where none is configured."""
        return tuple(self.settings.pools) or ("",)

    def _fleet(self, numbers: Mapping[str, int]) -> list[ProcessSpec]:
        """So many workers of each pool."""
        return [self._worker(pool, each) for pool, count in numbers.items() for each in range(1, count + 1)]

    def _worker(self, pool: str, number: int) -> ProcessSpec:
        if (pool, number) not in self._workers:
            self._workers[pool, number] = self._new_worker(pool, number)
        return self._workers[pool, number]

    def _new_worker(self, pool: str, number: int) -> ProcessSpec:
        settings = msgspec.structs.replace(self.settings, worker_pool=pool)
        # With a hyphen and the number last, no two pools give the same name.
        name = f"{pool}-{number}" if pool else f"worker{number}"
        loaded = models_loaded(Fleet(self._redis, lease_ttl_s=settings.lease_ttl_s))
        command = role_commands.worker(settings, name, watched=self.options.flower)
        spec = self._spec(
            "worker", name, command, stop_stage=1, stop_timeout_s=self._drain_s, probe=loaded, settings=settings
        )
        on_lost = BatchLog(self._redis, max_bytes=settings.explain_max_bytes).lost if settings.explain == "on" else None
        on_gone = self._count_gone if settings.metrics == "on" else None
        lines = PlaceLines(open_places(self.settings, self._redis))
        registry = ShardedRegistry(lines, settings.lease_ttl_s, on_lost=on_lost, on_gone=on_gone)
        give_back = leases_given_back(registry)
        # On QUIT it gives back its batches and exits.
        return replace(spec, aftermath=give_back, hasty_signal=signal.SIGQUIT, pool=pool)

    def _count_gone(self, worker_id: str) -> None:
        metrics.WORKERS_LOST.inc()
        # Counts that Redis did not take now are sent with the next.
        with contextlib.suppress(RedisError):
            self._flusher.flush()

    @cached_property
    def _flusher(self) -> metrics.MetricsFlusher:
        return metrics.MetricsFlusher(self._redis)

    @cached_property
    def _redis(self) -> Redis:
        return _client(self.settings.home_url)

    @property
    def _drain_s(self) -> float:
        return self.settings.graceful_timeout_s + self.settings.save_s + _STOP_MARGIN_S

    def _spec(
        self,
        role: Role,
        name: str,
        command: tuple[str, ...],
        *,
        stop_stage: int,
        stop_timeout_s: float,
        probe: Probe = alive,
        settings: Settings | None = None,
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            role=role,
            command=command,
            environment=role_environment(role, settings or self.settings),
            log_file=self.state_dir / "log" / f"{name}.log",
            start_stage=1,
            stop_stage=stop_stage,
            stop_timeout_s=stop_timeout_s,
            probe=probe,
        )


def _client(url: str) -> Redis:
    return connect(url, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S)


def _embedded(settings: Settings, state_dir: Path) -> EmbeddedValkey:
    return EmbeddedValkey(state_dir, ports.free_port(), settings.durability, settings.redis_max_memory_bytes)


def _clustered(settings: Settings, state_dir: Path, options: Options) -> EmbeddedCluster:
    return clustered(state_dir, settings.durability, settings.redis_max_memory_bytes, replicas=options.replicas)


def role_environment(role: Role, settings: Settings) -> dict[str, str]:
    """The environment of a role: the settings as `up` or the command line resolved them."""
    resolved = (
        *("mode", "redis_url", "broker_url", "state_dir", "http_host", "http_port", "web_workers"),
        *("flower_host", "flower_port", "grpc_host", "grpc_port"),
        *(("worker_models", "worker_pool") if role == "worker" else ()),
    )
    config_file = settings.config_file
    return child_environment(
        role,
        {name: getattr(settings, name) for name in resolved} | {"config": config_file},
        role_commands.flower_environment(settings) if role == "flower" else None,
        # A model's source may be beside the file that names it.
        (str(Path(config_file).parent),) if config_file else (),
        also=role_commands.asked_for_by_headers(settings) if role in {"web", "grpc"} else (),
        with_executors=role == "web" and settings.mode == "collocated",
    )


def _grpc_port(settings: Settings) -> int:
    return ports.require_free(settings.grpc_host, settings.grpc_port, "BUNCH_GRPC_PORT")


def _flower_port(settings: Settings) -> int:
    if settings.flower_port == _DEFAULT_FLOWER_PORT:
        return ports.first_free(settings.flower_host, _DEFAULT_FLOWER_PORT)
    return ports.require_free(settings.flower_host, settings.flower_port, "BUNCH_FLOWER_PORT")

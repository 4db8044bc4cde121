"""The settings with their types and defaults. Values are in milliseconds, as people write them; code uses the `_s`
properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Literal

import msgspec

from config.auth import AuthSettings, listed
from config.model_schema import (
    MAX_BATCH_BYTES,
    Devices,
    ModelSettings,
    NaturalInt,
    PoolSettings,
    PositiveInt,
    Task,
    Tensor,
)
from config.redis_url import is_cluster
from config.tiers import Tier

__all__ = ["MAX_BATCH_BYTES", "MAX_SHARDS", "Devices", "ModelSettings", "PoolSettings", "Settings", "Task", "Tensor"]

# An id has two hexadecimal digits for the number of its shard.
MAX_SHARDS = 256

# Under twelve days: times travel in fields of fixed width (`batching.fast_header`).
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=999_999_999)]
UpToMilliseconds = Annotated[int, msgspec.Meta(ge=0, le=999_999_999)]
# A flush is held for as long, and sent again; `submit.lua` remembers for 30 s whether it has run.
FailoverWait = Annotated[int, msgspec.Meta(ge=0, le=25_000)]
# Above a million per minute the interval between requests would be rounded too coarsely.
Rpm = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]

# The default memory for requests that are arriving, and the number of the largest bodies that it has room for: each
# byte of a body that is arriving counts twice.
_ARRIVING_BYTES = 64 * 1024 * 1024
_ARRIVING_BODIES = 4


class Settings(AuthSettings, frozen=True, kw_only=True):
    """All settings of one process. Field names are the setting names in lower case."""

    # Where requests wait: in Redis, or in the memory of one process that is frontend and worker.
    mode: Literal["durable", "collocated"] = "durable"
    redis_url: str = ""
    broker_url: str = ""
    # Of the queues; 0: 16 with a cluster, else 1. More than one: `config.shards`.
    shards: Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS)] = 0
    # For the embedded server: durability, and its memory limit; 0: a quarter of the machine's memory.
    durability: Literal["memory", "second", "disk", "replica"] = "second"
    redis_max_memory_bytes: NaturalInt = 0
    # Inputs and outputs above this lie beside the queue, in this Redis (empty: the same), and have so many bytes in all
    # (0: only the share of the server's memory limits them).
    inline_bytes: Annotated[int, msgspec.Meta(ge=1024, le=268_435_456)] = 32_768
    blob_url: str = ""
    blobs_max_bytes: NaturalInt = 0
    # So many bytes of them, in all, also lie in shared memory (/dev/shm) for the processes of one machine; 0: none.
    shared_memory_bytes: NaturalInt = 268_435_456
    # Files for TLS towards Redis and its sentinels, unless a URL names its own.
    redis_ca: str = ""
    redis_cert: str = ""
    redis_key: str = ""
    # How long a request that meets an outage of Redis is held. None: 5 s with Sentinel, else not at all.
    failover_wait_ms: FailoverWait | None = None
    result_ttl_ms: Milliseconds = 600_000
    sync_result_ttl_ms: Milliseconds = 60_000
    http_host: str = "127.0.0.1"
    http_port: Port = 8000
    grpc_host: str = "127.0.0.1"
    grpc_port: Port = 8001
    # TLS of the HTTP and gRPC servers: files in PEM form, and the authorities of clients' certificates.
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    # Addresses and networks of proxies whose word counts on where a request came from.
    trusted_proxies: str = ""
    # With auth off: host names, besides this machine's own, under which callers are served.
    allowed_hosts: str = ""
    # Sites whose pages may call from a browser.
    cors_origins: str = ""
    web_workers: PositiveInt = 2
    request_timeout_ms: Milliseconds = 10_000
    queue_timeout_ms: Milliseconds = 2_000
    # Per tier; 0: the same as without a tier.
    enterprise_queue_timeout_ms: UpToMilliseconds = 0
    paid_queue_timeout_ms: UpToMilliseconds = 0
    free_queue_timeout_ms: UpToMilliseconds = 0
    # The unit of a tier's threshold: the time to drain the queue, its depth, or no thresholds.
    admission: Literal["drain", "depth", "off"] = "drain"
    shed_free_ms: Milliseconds = 500
    shed_paid_ms: Milliseconds = 1_500
    shed_free_depth: PositiveInt = 100
    shed_paid_depth: PositiveInt = 500
    capacity_percent: Percent = 70
    max_memory_percent: Percent = 80
    ageing_ms: Milliseconds = 500
    # Rate limit of each key of a tier (requests per minute) without a limit of its own, and its burst.
    enterprise_rpm: Rpm = 10_000
    paid_rpm: Rpm = 1_000
    free_rpm: Rpm = 60
    # Requests per minute of each `client_id` of an owner; 0: only the key's limit.
    client_rpm: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    burst_ms: Milliseconds = 10_000
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 1_048_576
    # For bodies that are bytes rather than JSON, and for each input in them.
    blob_max_bytes: Annotated[int, msgspec.Meta(ge=1024, le=268_435_456)] = 67_108_864
    # Per web process: memory of requests that have not arrived completely. None: as much as the largest bodies need.
    max_arriving_bytes: Annotated[int, msgspec.Meta(ge=1_048_576)] | None = None
    max_bulk_items: PositiveInt = 1_000
    # Limit of one output as JSON. Redis itself accepts no value above 512 MB.
    max_output_bytes: Annotated[int, msgspec.Meta(ge=1024, le=268_435_456)] = 16_777_216
    # For models with `cache`; 0: no answer is cached.
    cache_ttl_ms: UpToMilliseconds = 300_000
    cache_max_bytes: Annotated[int, msgspec.Meta(ge=1_048_576)] = 67_108_864
    default_tier: Tier = Tier.PAID
    # Frontends sign their messages with this key; the previous one is still accepted.
    message_secret: str = ""
    message_secret_previous: str = ""
    # Hosts to which results may be pushed, and the key that signs them.
    callback_hosts: str = ""
    # Hosts from which inputs may be fetched.
    ref_hosts: str = ""
    callback_secret: str = ""
    state_dir: str = "var"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"
    lease_ttl_ms: Annotated[int, msgspec.Meta(ge=1000)] = 5_000
    graceful_timeout_ms: PositiveInt = 30_000
    # The number of on-demand models that a worker has loaded at once; 0: only memory fractions limit it.
    max_resident: NaturalInt = 0
    # Of a GPU's memory: above it, batches are smaller; 100: never.
    gpu_memory_percent: Percent = 90
    metrics: Literal["on", "off"] = "on"
    slo_enterprise_ms: Milliseconds = 500
    slo_paid_ms: Milliseconds = 1_000
    slo_free_ms: Milliseconds = 2_000
    slo_enterprise_target: Share = 0.999
    slo_paid_target: Share = 0.99
    slo_free_target: Share = 0.95
    otlp_endpoint: str = ""
    # `name=value,…`, sent with every export.
    otlp_headers: str = ""
    trace_sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    flower_host: str = "127.0.0.1"
    flower_port: Port = 5555
    flower_basic_auth: str = ""
    flower_max_tasks: PositiveInt = 10_000
    flower_persistent: bool = True
    # Whether events and `inspect active` show inputs and outputs. None: only with auth off.
    event_payloads: Literal["on", "off"] | None = None
    events_per_second: Annotated[float, msgspec.Meta(ge=1)] = 50.0
    explain: Literal["on", "off"] = "on"
    # Who can read a model's own exception text. None: callers with auth off, else operators only.
    error_detail: Literal["caller", "operator"] | None = None
    # Three quarters for all requests of the last hour, one quarter for failed requests of the last day.
    explain_max_bytes: Annotated[int, msgspec.Meta(ge=1_048_576)] = 67_108_864

    # Not settable by a BUNCH_ name: the file's settings of models.
    models: Mapping[str, ModelSettings] = {}
    pools: Mapping[str, PoolSettings] = {}
    default_model: str = ""
    config_file: str = ""
    # Of a worker process alone: its pool, or the models that it serves, comma-separated. Both empty: every model.
    worker_pool: str = ""
    worker_models: str = ""

    @property
    def shows_payloads(self) -> bool:
        """Return whether events and `inspect active` include inputs and outputs."""
        return self.event_payloads == "on" or (self.event_payloads is None and self.auth == "off")

    @property
    def host_names(self) -> frozenset[str]:
        """`allowed_hosts`, in lower case."""
        return frozenset(listed(self.allowed_hosts.lower()))

    @property
    def proxy_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """`trusted_proxies` as networks. Raises ValueError."""
        return tuple(ip_network(each) for each in listed(self.trusted_proxies))

    @property
    def origins(self) -> frozenset[str]:
        """`cors_origins`, as browsers send them."""
        return frozenset(listed(self.cors_origins.lower()))

    @property
    def takes_bytes(self) -> bool:
        """Return whether any model takes bytes."""
        return any(model.takes_bytes for model in self.models.values())

    @property
    def largest_body_bytes(self) -> int:
        """The limit of the largest body that any endpoint takes."""
        return max(self.max_body_bytes, self.blob_max_bytes) if self.takes_bytes else self.max_body_bytes

    @property
    def largest_input_bytes(self) -> int:
        """The limit of the JSON of one input: bytes are base64 in it."""
        return max(self.max_body_bytes, 4 * self.largest_body_bytes // 3 + 64)

    @property
    def arriving_bytes(self) -> int:
        """`max_arriving_bytes`, or its default."""
        least = _ARRIVING_BODIES * self.largest_body_bytes
        return max(_ARRIVING_BYTES, least) if self.max_arriving_bytes is None else self.max_arriving_bytes

    def lies_beside(self, size: int) -> bool:
        """Return whether an input of so many bytes lies beside the queue; in collocated mode that is no other place."""
        return size > self.inline_bytes and self.mode != "collocated"

    @property
    def result_ttl_s(self) -> float:
        return self.result_ttl_ms / 1000

    @property
    def request_timeout_s(self) -> float:
        return self.request_timeout_ms / 1000

    @property
    def queue_timeout_s(self) -> float:
        return self.queue_timeout_ms / 1000

    def queue_timeout_of(self, tier: Tier) -> int:
        """The maximum time of a request of `tier` in the queue, in milliseconds."""
        own = {
            Tier.ENTERPRISE: self.enterprise_queue_timeout_ms,
            Tier.PAID: self.paid_queue_timeout_ms,
            Tier.FREE: self.free_queue_timeout_ms,
        }
        return own[tier] or self.queue_timeout_ms

    def rpm_of(self, tier: Tier) -> int:
        """The default rate limit of a key of `tier`, in requests per minute."""
        return {Tier.ENTERPRISE: self.enterprise_rpm, Tier.PAID: self.paid_rpm, Tier.FREE: self.free_rpm}[tier]

    def shed_thresholds(self) -> tuple[int | None, ...]:
        """The pressure above which requests of each tier are refused, highest tier first, in ms or in requests; None:
        never.
        """
        if self.admission == "depth":
            return (None, self.shed_paid_depth, self.shed_free_depth)
        return (None, self.shed_paid_ms, self.shed_free_ms)

    @property
    def lease_ttl_s(self) -> float:
        return self.lease_ttl_ms / 1000

    @property
    def graceful_timeout_s(self) -> float:
        return self.graceful_timeout_ms / 1000

    @property
    def save_s(self) -> int:
        """Seconds after the graceful timeout in which a process of collocated mode moves to Redis what is left."""
        return 4 if self.mode == "collocated" else 0

    @property
    def failover_wait_s(self) -> float:
        """Seconds for which a request is held while Redis fails over."""
        if self.failover_wait_ms is not None:
            return self.failover_wait_ms / 1000
        watched = self.redis_url.startswith(("sentinel://", "rediss+sentinel://"))
        return 5.0 if watched or self.is_clustered else 0.0

    @property
    def is_clustered(self) -> bool:
        """Return whether requests are in a Redis Cluster."""
        return is_cluster(self.redis_url)

    @property
    def shard_count(self) -> int:
        return self.shards or (16 if self.is_clustered else 1)

    @property
    def home_url(self) -> str:
        """The Redis URL of everything that is no shard's. A cluster has shards alone."""
        return self.control_url if self.is_clustered else self.redis_url

    @property
    def control_url(self) -> str:
        """The Redis URL of Celery's own traffic (remote control, events, plain tasks)."""
        return self.broker_url or self.redis_url

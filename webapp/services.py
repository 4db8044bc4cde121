"""The objects that the handlers of one frontend process use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from redis import Redis

from config.settings import Settings
from config.shards import Places
from tasks.client.client_limit import ClientLimit
from tasks.client.sharded_client import AnyClient
from tasks.fleet.queue_reader import QueueReader
from tasks.fleet.registry_reader import Fleet
from tasks.observability.history import History
from tasks.observability.metrics import SharedMetrics
from tasks.observability.slow_log import SlowLog
from webapp.api.kserve.signature import Signature
from webapp.binary_inputs import BinaryInputs
from webapp.body_budget import BodyBudget
from webapp.callbacks import Callbacks
from webapp.fallback import FallbackModels
from webapp.identity.base import Identity
from webapp.input_schemas import InputSchemas
from webapp.model_tasks import ModelTasks
from webapp.model_versions import ModelVersions
from webapp.observability.door_ledger import DoorLedger
from webapp.observability.door_log import DoorRecord
from webapp.observability.metrics import RequestTallies
from webapp.readiness import Readiness
from webapp.request import HttpRequest, HttpResponse
from webapp.routing import RouteTable

if TYPE_CHECKING:
    from webapp.observability.tracing import RequestTracer


class EventStreams(Protocol):
    """The event streams of one process, for the operations page."""

    def open(self, call: HttpRequest) -> HttpResponse:
        """Start a stream. Raises ApiError."""


@dataclass(slots=True)
class Services:
    """`redis` is that of the home. `declared` has the models with schemas. `tracer` is set once a process that exports
    spans has started, `description` and `events` at the first request for them. `followed` counts results that are
    followed, by key.
    """

    settings: Settings
    redis: Redis
    places: Places
    client: AnyClient
    fleet: Fleet
    waiting: QueueReader
    metrics: SharedMetrics
    tallies: RequestTallies
    history: History
    slow: SlowLog
    direct: FallbackModels
    identity: Identity
    readiness: Readiness
    large: BodyBudget
    clients: ClientLimit
    callbacks: Callbacks
    routes: RouteTable
    tasks: ModelTasks
    versions: ModelVersions
    signatures: Mapping[str, Signature]
    binary: BinaryInputs
    declared: Mapping[str, InputSchemas] = field(default_factory=dict)
    ledger: DoorLedger | None = None
    record: DoorRecord | None = None
    tracer: RequestTracer | None = None
    description: bytes = b""
    events: EventStreams | None = None
    followed: Counter[str] = field(default_factory=Counter)

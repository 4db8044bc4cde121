"""What the handlers of one frontend process work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redis import Redis

from config.settings import Settings
from tasks.client import Client
from tasks.clients import ClientLimit
from tasks.fleet import Fleet
from tasks.history import History
from tasks.metrics import SharedMetrics
from tasks.slow import SlowLog
from webapp.declared import Declared
from webapp.direct import DirectModels
from webapp.identity.base import Identity
from webapp.large import LargeBodies
from webapp.ledger import DoorLedger
from webapp.readiness import Readiness
from webapp.record import DoorRecord

if TYPE_CHECKING:
    from webapp.tracing import RequestTracer


@dataclass(slots=True)
class Services:
    """`declared` has the models that declare something. `tracer` is there once a process that exports spans has
    started, `description` once somebody has asked for the API's.
    """

    settings: Settings
    redis: Redis
    client: Client
    fleet: Fleet
    metrics: SharedMetrics
    history: History
    slow: SlowLog
    direct: DirectModels
    identity: Identity
    readiness: Readiness
    large: LargeBodies
    clients: ClientLimit
    declared: Mapping[str, Declared] = field(default_factory=dict)
    ledger: DoorLedger | None = None
    record: DoorRecord | None = None
    tracer: RequestTracer | None = None
    description: bytes = b""

"""What the handlers of one frontend process work with."""

from __future__ import annotations

from dataclasses import dataclass

from redis import Redis

from config.settings import Settings
from tasks.client import Client
from tasks.fleet import Fleet
from tasks.metrics import SharedMetrics
from webapp.direct import DirectModels
from webapp.identity.base import Identity
from webapp.ledger import RefusalLedger


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    redis: Redis
    client: Client
    fleet: Fleet
    metrics: SharedMetrics
    direct: DirectModels
    identity: Identity
    ledger: RefusalLedger | None = None

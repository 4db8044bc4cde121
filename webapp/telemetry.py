"""The frontend's own metrics, added up in this process and flushed to the shared sums once a second."""

from __future__ import annotations

import logging
from typing import Any

import gevent
from redis.exceptions import RedisError

from config.tiers import Tier
from tasks import metrics

logger = logging.getLogger(__name__)

_children: dict[tuple[str, Tier, str], tuple[Any, Any]] = {}


def count(model: str, tier: Tier, code: str, seconds: float, shed: str = "") -> None:
    """One request answered: `code` is OK or the contract's, `shed` why it was not let in."""
    children = _children.get((model, tier, code))
    if children is None:
        children = _children[model, tier, code] = (
            metrics.REQUESTS.labels(model, tier.value, code),
            metrics.REQUEST_SECONDS.labels(model, tier.value),
        )
    children[0].inc()
    children[1].observe(seconds)
    if shed:
        metrics.SHED.labels(tier.value, shed).inc()


def flush_forever(flusher: metrics.MetricsFlusher, every_s: float = 1.0) -> None:
    """Until killed; what is left goes out then."""
    try:
        while True:
            gevent.sleep(every_s)
            _flush(flusher)
    finally:
        _flush(flusher)


def _flush(flusher: metrics.MetricsFlusher) -> None:
    try:
        flusher.flush()
    except RedisError as error:
        logger.debug("metrics not flushed: %s", error)

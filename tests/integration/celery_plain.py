"""Another program's Celery app: its tasks record each call in the Redis list `seen:<name>`, so that a test can
count.
"""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery
from redis import Redis

URL = os.environ.get("PLAIN_URL", "redis://127.0.0.1:1/0")

app = Celery("plain", broker=URL, backend=os.environ.get("PLAIN_BACKEND", "") + URL, set_as_current=False)
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
if visibility := os.environ.get("PLAIN_VISIBILITY_TIMEOUT"):
    app.conf.broker_transport_options = {
        "visibility_timeout": float(visibility),
        "unacked_restore_interval": 0.2,
        "unacked_restore_throttle": 1,
    }
_redis = Redis.from_url(URL)


def _note(name: str, *values: Any) -> None:
    _redis.rpush(f"seen:{name}", json.dumps(values))


@app.task(name="plain.note")
def note(value: Any, name: str) -> Any:
    _note(name, value)
    return value


@app.task(name="plain.double")
def double(value: float) -> float:
    return value * 2


@app.task(name="plain.total")
def total(values: list[float], name: str) -> float:
    _note(name, values)
    return sum(values)


@app.task(name="plain.failed")
def failed(task_id: str, name: str) -> None:
    """`link_error` in its plain form: the failed task's id comes before its own arguments."""
    _note(name, task_id)

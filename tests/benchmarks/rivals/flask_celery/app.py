"""Flask + plain Celery: a common setup without batching.

    wrk ──▶ gunicorn, 2 gevent workers ──apply_async──▶ Redis ──▶ one Celery worker
                        ▲                                              │
                        └────────── AsyncResult.get ◀── Redis ◀────────┘

One request is one task: the model sees batches of one, and one at a time.
"""

from __future__ import annotations

import os

from celery import Celery
from flask import Flask, request
from stand_in import load

celery = Celery("rival", broker=os.environ["BENCH_REDIS_URL"], backend=os.environ["BENCH_REDIS_URL"])
celery.conf.update(
    result_expires=600,
    # With the default of 4 the worker would fetch only a few messages at a time; more keeps it busy.
    worker_prefetch_multiplier=64,
    worker_hijack_root_logger=False,
)
model = load()
web = Flask(__name__)


@celery.task(name="infer")
def infer(text: str) -> str:
    return model.predict([text])[0]


@web.post("/infer")
def infer_view() -> dict[str, str]:
    result = infer.apply_async((request.get_json()["input"],))
    return {"output": result.get(timeout=30)}

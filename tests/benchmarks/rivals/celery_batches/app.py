"""celery-batches behind the same Flask: the nearest prior art.

The batch is collected inside the worker's consumer; each member's result is stored on its own.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery_batches import Batches
from flask import Flask, request
from stand_in import MAX_BATCH_SIZE, load

celery = Celery("rival", broker=os.environ["BENCH_REDIS_URL"], backend=os.environ["BENCH_REDIS_URL"])
celery.conf.update(
    result_expires=600,
    # celery-batches' documentation: the prefetch count must be well above flush_every, or batches never fill.
    worker_prefetch_multiplier=4 * MAX_BATCH_SIZE,
    worker_hijack_root_logger=False,
)
model = load()
web = Flask(__name__)


# Every flush goes to the pool's queue at once, so an interval shorter than the model's own time piles up
# batches of one or two there (40 requests/s with the 50 ms model instead of hundreds). With a quick model the
# interval is only a wait, so it is short.
@celery.task(name="infer", base=Batches, flush_every=MAX_BATCH_SIZE, flush_interval=max(0.01, 1.2 * model.batch_s))
def infer(requests: list[Any]) -> None:
    # A flush by the timer may have more than flush_every requests.
    for start in range(0, len(requests), MAX_BATCH_SIZE):
        members = requests[start : start + MAX_BATCH_SIZE]
        outputs = model.predict([member.args[0] for member in members])
        for member, output in zip(members, outputs, strict=True):
            celery.backend.mark_as_done(member.id, output, request=member)


@web.post("/infer")
def infer_view() -> dict[str, str]:
    result = infer.apply_async((request.get_json()["input"],))
    return {"output": result.get(timeout=30)}

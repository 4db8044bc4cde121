"""BentoML: one service, one worker, a batchable API with the adaptive batcher.

BentoML's batcher lives in the process that runs the model, so one model instance means one such process.
The other shape, an HTTP service with two workers in front of this one through `bentoml.depends`, adds an HTTP
hop to every request, and 1.4.40 answers some of 64 concurrent ones with 500 (its client meets connections that
were just closed).
"""

from __future__ import annotations

import bentoml
from stand_in import MAX_BATCH_SIZE, load


@bentoml.service(
    workers=1,
    traffic={"timeout": 60},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
)
class Inference:
    def __init__(self) -> None:
        self.model = load()

    # Above max_latency_ms BentoML drops requests with 503; it does not set the wait for a full batch (BentoML learns
    # that). So it is far above the latencies of 256 callers.
    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH_SIZE, max_latency_ms=30_000)
    def infer(self, inputs: list[str]) -> list[str]:
        return self.model.predict(inputs)

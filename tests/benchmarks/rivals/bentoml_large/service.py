"""BentoML with uploads: multipart, each file a path on disk, batched."""

from __future__ import annotations

from pathlib import Path

import bentoml


@bentoml.service(
    workers=1,
    traffic={"timeout": 60},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
)
class Weigh:
    @bentoml.api(batchable=True, max_batch_size=16, max_latency_ms=30_000)
    def infer(self, files: list[Path]) -> list[list[int]]:
        found = []
        for each in files:
            raw = each.read_bytes()
            found.append([len(raw), raw[0], raw[-1]])
        return found

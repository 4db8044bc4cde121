"""LitServe: uvicorn for HTTP, one inference process, queues between them."""

from __future__ import annotations

import os
from typing import Any

import litserve
from stand_in import MAX_BATCH_SIZE, MAX_QUEUE_DELAY_MS, StandIn, load, port


class Inference(litserve.LitAPI):
    model: StandIn

    def setup(self, device: str) -> None:
        self.model = load()

    def decode_request(self, request: dict[str, str]) -> str:
        return request["input"]

    def batch(self, inputs: list[str]) -> list[str]:
        return list(inputs)

    def predict(self, batch: list[str]) -> list[str]:
        return self.model.predict(batch)

    def unbatch(self, output: list[str]) -> Any:
        return output

    def encode_response(self, output: str) -> dict[str, str]:
        return {"output": output}


if __name__ == "__main__":
    api = Inference(max_batch_size=MAX_BATCH_SIZE, batch_timeout=MAX_QUEUE_DELAY_MS / 1000)
    # Its documentation recommends this above 100 requests/s.
    tuned = "BENCH_TUNED" in os.environ
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1, timeout=60, fast_queue=tuned)
    server.run(
        host="127.0.0.1",
        port=port(),
        num_api_servers=2 if tuned else None,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )

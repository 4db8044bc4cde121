"""Ray Serve: HTTP proxy → router → one replica whose handler is `@serve.batch`.

A node has one proxy; Ray has no setting for a second.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import ray
from ray import serve
from stand_in import MAX_BATCH_SIZE, MAX_QUEUE_DELAY_MS, load, port
from starlette.requests import Request

# Ray closes a batch when its wait is over even though the model is still busy with the last one. So a wait shorter than
# the model's own time makes small batches that queue up: with 64 callers of the 50 ms model 67 requests/s instead of
# 214. The price is that wait for a single caller.
BATCH_WAIT_S = max(MAX_QUEUE_DELAY_MS / 1000, load().batch_s)


# max_ongoing_requests is 5 by default, less than one batch; Ray's documentation recommends at least a batch. With
# twelve batches, 256 callers reach the replica's queue instead of waiting in the proxy's.
@serve.deployment(num_replicas=1, max_ongoing_requests=12 * MAX_BATCH_SIZE, ray_actor_options={"num_cpus": 1})
class Inference:
    def __init__(self) -> None:
        self.model = load()

    @serve.batch(max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=BATCH_WAIT_S)
    async def infer(self, inputs: list[str]) -> list[str]:
        if not self.model.batch_s:
            return self.model.predict(inputs)
        # In a thread, or the replica could accept no request while the model computes.
        return await asyncio.to_thread(self.model.predict, inputs)

    async def __call__(self, request: Request) -> dict[str, str]:
        return {"output": await self.infer((await request.json())["input"])}


def main() -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=os.environ["BENCH_RUN_DIR"],
        object_store_memory=100 * 1024 * 1024,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port()}, logging_config={"enable_access_log": False})
    serve.run(Inference.bind(), route_prefix="/")
    stop.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()

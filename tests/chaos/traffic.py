"""Requests at a steady rate to the services of a `Kubelet`, and its settings for them."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import grpc

from cli.loadgen.load import Load, Run
from tests.chaos.kubelet import Kubelet
from tests.configs import uncached
from tests.waiting import wait_until
from webapp.grpc.proto import open_inference_pb2 as pb
from webapp.grpc.service import SERVICE

# Of all requests.
GRPC_SHARE = 0.3
PATIENCE_MS = 30_000
_CONFIG = """\
[models.written]
source = "written:Written"
options = {{ file = "{file}" }}
max_batch_size = 16
timeout_ms = 120000
"""


def kubelet_on(folder: Path, redis_url: str) -> Kubelet:
    """A kubelet whose model writes its inputs into `written` of the folder."""
    config = folder / "bunch.toml"
    config.write_text(uncached(_CONFIG.format(file=folder / "written")))
    shutil.copy(Path(__file__).with_name("written.py"), folder)
    environment = {
        "BUNCH_REDIS_URL": redis_url,
        "BUNCH_WEB_WORKERS": "1",
        # A machine with other work is slow, not wrong.
        "BUNCH_QUEUE_TIMEOUT_MS": str(PATIENCE_MS),
        "BUNCH_REQUEST_TIMEOUT_MS": str(PATIENCE_MS),
        # A gRPC server waits for its clients to leave for half of it.
        "BUNCH_GRACEFUL_TIMEOUT_MS": "16000",
        "BUNCH_LEASE_TTL_MS": "120000",
        "BUNCH_ADMISSION": "off",
    }
    return Kubelet(folder, config, environment)


class Traffic:
    """Requests over HTTP and gRPC, each with a number of its own, at a steady rate until it is stopped."""

    def __init__(self, kubelet: Kubelet, rps: float) -> None:
        self._kubelet = kubelet
        self._rps = rps
        self._stopped = False
        self.http = Run(keep_bodies=True)
        self.grpc: Counter[str] = Counter()
        self._done: list[asyncio.Future[None]] = []

    def __enter__(self) -> Self:
        url = f"http://127.0.0.1:{self._kubelet.services['web'].port}/v1/inference"
        load = Load(url, lambda number: b'{"input": "h%d"}' % number, PATIENCE_MS / 1000, self.http)
        for work in (load.at(self._due(self._rps * (1 - GRPC_SHARE))), self._call_grpc(self._rps * GRPC_SHARE)):
            self._done.append(asyncio.run_coroutine_threadsafe(work, self._kubelet.node.loop))  # type: ignore[arg-type]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        for each in self._done:
            each.result(120)  # type: ignore[call-arg]

    def check(self, written: Path) -> None:
        """Check that each request was answered, and computed once."""
        codes = Counter(each.status for each in self.http.answers)
        assert set(codes) == {200}, (codes, self.http.refusals)
        assert set(self.grpc) == {"OK"}, self.grpc
        computed = Counter(written.read_text().split())
        assert [each for each, count in computed.items() if count > 1] == []
        assert computed.total() == codes.total() + self.grpc.total()

    def more(self, count: int) -> None:
        """Wait for so many more answers of each kind."""
        http, rpc = len(self.http.answers) + count, self.grpc.total() + count
        wait_until(lambda: len(self.http.answers) >= http and self.grpc.total() >= rpc, what=self._kubelet.logs)

    def _due(self, rps: float) -> Iterator[float]:
        number = 0
        while not self._stopped:
            number += 1
            yield number / rps

    async def _call_grpc(self, rps: float) -> None:
        # One connection each, as of one client.
        target = f"127.0.0.1:{self._kubelet.services['grpc'].port}"
        options = (("grpc.use_local_subchannel_pool", 1),)
        channels = [grpc.aio.insecure_channel(target, options) for _ in range(4)]
        method = f"/{SERVICE}/ModelInfer"
        infer = [
            each.unary_unary(method, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString)
            for each in channels
        ]

        async def one(number: int) -> None:
            text = f"g{number}".encode()
            row = pb.ModelInferRequest.InferInputTensor(name="input", datatype="BYTES", shape=[1])
            row.contents.bytes_contents.append(text)
            try:
                await infer[number % len(infer)](
                    pb.ModelInferRequest(model_name="written", inputs=[row]), timeout=PATIENCE_MS / 1000
                )
                self.grpc["OK"] += 1
            except grpc.aio.AioRpcError as error:
                self.grpc[f"{error.code().name}: {error.details()}"] += 1

        began, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as calls:
            for number, due in enumerate(self._due(rps)):
                await asyncio.sleep(max(0.0, began + due - time.monotonic()))
                calls.create_task(one(number))
        for each in channels:
            await each.close()

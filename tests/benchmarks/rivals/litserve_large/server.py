"""LitServe with uploads, as its page on images shows them: multipart, the file read in `decode_request`."""

# No postponed annotations: LitServe looks at the type of `decode_request` itself.
from typing import Any

import litserve
from fastapi import Request
from stand_in import MAX_QUEUE_DELAY_MS, port


class Weigh(litserve.LitAPI):
    def setup(self, device: str) -> None:
        """Nothing to load."""

    def decode_request(self, request: Request) -> bytes:
        return request["file"].file.read()

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return list(inputs)

    def predict(self, batch: list[bytes]) -> list[list[int]]:
        return [[len(each), each[0], each[-1]] for each in batch]

    def unbatch(self, output: list[list[int]]) -> Any:
        return output

    def encode_response(self, output: list[int]) -> dict[str, list[int]]:
        return {"output": output}


if __name__ == "__main__":
    api = Weigh(max_batch_size=16, batch_timeout=MAX_QUEUE_DELAY_MS / 1000)
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port=port(), log_level="warning", generate_client_file=False, access_log=False)

"""mosec: HTTP and queue in Rust, the model in a Python process behind a unix socket."""

from __future__ import annotations

from mosec import Server, Worker
from stand_in import MAX_BATCH_SIZE, MAX_QUEUE_DELAY_MS, load


class Inference(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.model = load()

    def forward(self, data: list[dict[str, str]]) -> list[dict[str, str]]:
        return [{"output": output} for output in self.model.predict([item["input"] for item in data])]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Inference, num=1, max_batch_size=MAX_BATCH_SIZE, max_wait_time=MAX_QUEUE_DELAY_MS)
    server.run()

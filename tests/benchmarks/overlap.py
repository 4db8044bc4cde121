"""Throughput of `minilm` in one executor with overlapping stages, and with all three in one `predict`, in turn.

    python -m tests.benchmarks.overlap [--device-ms 6] [--size 64] [--rounds 3] [--seconds 5]

Two batches of sentences are in hand all the time. With `--device-ms`, `predict` is a wait of that time instead. The
processor is free in it, as beside a GPU; tokenising, lists and JSON are the real ones.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

from batching.request import Done, Work
from config.settings import ModelSettings
from workers.executor.process_executor import ProcessExecutor
from workers.models.minilm import MiniLM, Staged

SENTENCES = Path(__file__).parents[2] / "cli" / "run" / "sentences.txt"
_LONG_S = 120.0


class Overlapping(MiniLM):
    """`minilm`, or its CPU side around a wait of `device_ms`."""

    def __init__(self, device_ms: float = 0.0) -> None:
        super().__init__()
        self._device_s = device_ms / 1000

    def predict(self, staged: Staged, parameters: list[dict[str, Any]]) -> Staged:
        if not self._device_s:
            return super().predict(staged, parameters)
        import torch

        time.sleep(self._device_s)
        # As many digits as real ones, which are what JSON costs.
        staged.vectors = torch.nn.functional.normalize(torch.randn(len(staged.sequences), 384), dim=1)
        return staged


class InOne:
    """The same in one `predict`."""

    def __init__(self, device_ms: float = 0.0) -> None:
        self._model = Overlapping(device_ms)

    def load(self, device: str) -> None:
        self._model.load(device)

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return self._model.finish(self._model.predict(self._model.prepare(inputs, parameters), parameters))


def start(kind: type[Any], device_ms: float, device: str = "auto") -> ProcessExecutor:
    """A running executor of the model, on that device of torch."""
    source = f"{__name__ if __name__ != '__main__' else 'tests.benchmarks.overlap'}:{kind.__name__}"
    options = {"device_ms": device_ms}
    settings = ModelSettings(
        name=kind.__name__.lower(), source=source, options=options, device=device, timeout_ms=60_000
    )
    executor = ProcessExecutor(settings, 0)
    executor.start()
    if not executor.wait_ready(_LONG_S):
        raise RuntimeError(executor.error)
    return executor


def throughput(executor: ProcessExecutor, size: int, seconds: float) -> float:
    """Requests per second with two batches in hand."""
    texts = SENTENCES.read_text(encoding="utf-8").splitlines()
    inputs = [msgspec.json.encode(texts[n % len(texts)]) for n in range(size)]
    done, began = 0, time.perf_counter()
    for _ in range(2):
        executor.send(Work("batch", inputs, [b"{}"] * size))
    while time.perf_counter() - began < seconds:
        done += isinstance(executor.receive(_LONG_S), Done)
        executor.send(Work("batch", inputs, [b"{}"] * size))
    took_s = time.perf_counter() - began
    for _ in range(2):
        executor.receive(_LONG_S)
    return done * size / took_s


def main() -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device-ms", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    executors = {kind.__name__: start(kind, options.device_ms) for kind in (InOne, Overlapping)}
    rows: dict[str, list[float]] = {name: [] for name in executors}
    for executor in executors.values():
        throughput(executor, options.size, 1.0)
    for _ in range(options.rounds):
        for name, executor in executors.items():
            rows[name].append(throughput(executor, options.size, options.seconds))
    for name, row in rows.items():
        print(f"{name:12}", *(f"{each:8.0f}" for each in row), f"  median {statistics.median(row):.0f}/s")
    for executor in executors.values():
        executor.stop(1.0)


if __name__ == "__main__":
    main()

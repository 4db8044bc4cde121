"""The form of a request to each kind of system, and of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# A sentence; the published designs assume 2 KB, in and out.
SMALL_BYTES, LARGE_BYTES = 60, 2048


class Texts:
    """Distinct inputs of one size, or as long as they must be to differ; as `wrk/infer.lua` makes them.

    The seed differs from run to run, so that no cache ever helps.
    """

    def __init__(self, seed: str, payload_bytes: int) -> None:
        before, after = f"sentence {seed}-", " of the benchmark"
        self._before = before
        self._after = "x" * (payload_bytes - len(before) - 9 - len(after)) + after

    def of(self, number: int) -> str:
        return f"{self._before}{number:09d}{self._after}"


@dataclass(frozen=True, slots=True)
class Shape:
    """A POST body is `prefix + input + suffix`; inputs here never need JSON escapes. `credential` is a bearer token."""

    path: str
    prefix: str
    suffix: str
    read: Callable[[Any], str]
    credential: str = ""

    def body(self, text: str) -> bytes:
        return f"{self.prefix}{text}{self.suffix}".encode()

    def answer(self, body: bytes) -> str:
        """The echoed string. Raises `ValueError`, `KeyError`, `IndexError` or `TypeError` on another body."""
        return self.read(json.loads(body))


def input_output(path: str) -> Shape:
    """`{"input": "…"}` → `{"output": "…"}`."""
    return Shape(path, '{"input":"', '"}', lambda answer: str(answer["output"]))


def list_of_one(path: str) -> Shape:
    """`{"inputs": ["…"]}` → `["…"]`: BentoML's batchable APIs take and return lists."""
    return Shape(path, '{"inputs":["', '"]}', lambda answer: str(answer[0]))


def kserve_v2(path: str) -> Shape:
    """KServe v2 with a BYTES tensor of one element."""
    return Shape(
        path,
        '{"inputs":[{"name":"INPUT","shape":[1,1],"datatype":"BYTES","data":["',
        '"]}]}',
        lambda answer: str(answer["outputs"][0]["data"][0]),
    )

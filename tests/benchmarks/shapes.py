"""The form of a request to each kind of system, and of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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

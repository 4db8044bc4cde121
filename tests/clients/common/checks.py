"""The common part of the scripts beside this file. It runs in their environments, so it needs nothing of ours.

python SCRIPT.py URL KEY LIMITED_KEY ─▶ one JSON object: what was checked → "" or the error
"""

from __future__ import annotations

import base64
import json
import os
import struct
import sys
import traceback
from collections.abc import Callable

URL, KEY, LIMITED = sys.argv[1:4]
# Of the gRPC role, `host:port`.
GRPC = os.environ.get("GRPC", "")
TEXTS = ["A bunch of celery", "Vegetables on the market", "The central bank"]
_checks: dict[str, Callable[[], None]] = {}


def check(text: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function as a check."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        _checks[text] = function
        return function

    return register


def close(one: list[float], other: list[float], tolerance: float = 1e-5) -> bool:
    return len(one) == len(other) > 0 and all(abs(a - b) < tolerance for a, b in zip(one, other, strict=True))


def raw(path: str, body: object, key: str = KEY) -> object:
    """The answer to a POST without any client."""
    import urllib.request

    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def embedding_of(text: str, model: str = "minilm") -> list[float]:
    """The embedding as our own API gives it."""
    answer = raw("/v1/inference", {"model": model, "input": text})
    assert isinstance(answer, dict)
    return answer["output"]


def unpacked(text: str) -> list[float]:
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def main() -> None:
    found = {}
    for text, function in _checks.items():
        try:
            function()
        except BaseException:  # noqa: BLE001 - a client may raise anything
            found[text] = traceback.format_exc()[-3000:]
        else:
            found[text] = ""
    print(json.dumps(found))

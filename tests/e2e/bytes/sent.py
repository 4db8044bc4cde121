"""Inputs of the tests of bytes, and the outputs that come back."""

from __future__ import annotations

import io
import json
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa

from tests.e2e.client import Answer, Api

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
LARGE = bytes(range(256)) * 12_000
MOST_BYTES = 4_000_000


def post(api: Api, raw: bytes, content_type: str, /, **query: object) -> Answer:
    words = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in query.items()}
    path = "/v1/inference" + (f"?{urlencode(words)}" if words else "")
    return api.call("POST", path, raw=raw, Content_Type=content_type)


def output(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json["output"]


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def stream(table: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def form(*parts: tuple[str, bytes, str], boundary: str = "----B'", tail: str = "--") -> tuple[bytes, str]:
    """A body of parts, each a disposition, data and further headers, and its Content-Type."""
    body = b"".join(
        f"--{boundary}\r\nContent-Disposition: {disposition}\r\n{more}\r\n".encode() + data + b"\r\n"
        for disposition, data, more in parts
    )
    return body + f"--{boundary}{tail}\r\n".encode(), f'multipart/form-data; boundary="{boundary}"'


def part(name: str, data: bytes, content_type: str = "") -> tuple[str, bytes, str]:
    return f'form-data; name="{name}"', data, f"Content-Type: {content_type}\r\n" if content_type else ""


def described(raw: bytes, **parameters: object) -> dict[str, object]:
    return {"type": "bytes", "size": len(raw), "sha256": sha256(raw).hexdigest(), "parameters": parameters}

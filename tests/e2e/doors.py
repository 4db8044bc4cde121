"""Every door of one model, `tests.fakes.embedder:Everything`, as callers use it: texts in, vectors or scores out."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

MODEL = "everything"
QUERY = "aeiou text"
Values = list[list[float]]


@dataclass(frozen=True)
class Door:
    """One way in over HTTP. `of` is its label in the metrics, `most` the texts of one call."""

    path: str
    of: str
    body: Callable[[Sequence[str]], bytes]
    read: Callable[[bytes], Values]
    most: int = 40
    ranks: bool = False
    headers: Callable[[bytes], dict[str, str]] = field(default=lambda body: {"Content-Type": "application/json"})

    def head(self, body: bytes) -> dict[str, str]:
        return {**self.headers(body), "Content-Length": str(len(body))}


def vector(text: str) -> list[float]:
    return [number / 3 for number in (len(text), *map(ord, text), *[0] * 8)][:8]


def score(text: str) -> list[float]:
    return [sum(letter in QUERY for letter in text) / len(text)]


def _json(make: Callable[[Sequence[str]], object]) -> Callable[[Sequence[str]], bytes]:
    return lambda texts: json.dumps(make(texts)).encode()


def _floats(raw: bytes) -> Values:
    return [list(each) for each in struct.iter_unpack("<8f", raw)]


def _by_place(rows: Sequence[dict[str, Any]], name: str) -> Values:
    return [[row[name]] for row in sorted(rows, key=lambda row: row["index"])]


def _tensor(texts: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"name": "input", "datatype": "BYTES", "shape": [len(texts)], **more}


def elements(texts: Sequence[str]) -> bytes:
    """BYTES as the protocol packs them."""
    return b"".join(struct.pack("<I", len(each.encode())) + each.encode() for each in texts)


def _binary(texts: Sequence[str]) -> bytes:
    raw = elements(texts)
    document = {
        "inputs": [_tensor(texts, parameters={"binary_data_size": len(raw)})],
        "parameters": {"binary_data_output": True},
    }
    return json.dumps(document).encode() + raw


def _binary_length(body: bytes) -> dict[str, str]:
    _, length = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    return {"Inference-Header-Content-Length": str(length)}


def _read_binary(body: bytes) -> Values:
    return _floats(body[json.JSONDecoder().raw_decode(body.decode("latin-1"))[1] :])


def _read_tensor(body: bytes) -> Values:
    data = json.loads(body)["outputs"][0]["data"]
    return [data[at : at + 8] for at in range(0, len(data), 8)]


def _read_packed(body: bytes) -> Values:
    return [_floats(base64.b64decode(each["embedding"]))[0] for each in json.loads(body)["data"]]


HTTP_DOORS = (
    Door(
        *("/v1/inference", "bunch", _json(lambda texts: {"model": MODEL, "input": texts[0]})),
        lambda body: [json.loads(body)["output"]],
        most=1,
    ),
    Door(
        *("/v1/predict", "bunch", _json(lambda texts: {"model_id": MODEL, "input_data": texts[0]})),
        lambda body: [json.loads(body)["output"]],
        most=1,
    ),
    Door(
        *("/v1/inference/bulk", "bunch", _json(lambda texts: {"model": MODEL, "inputs": texts})),
        lambda body: [each["output"] for each in json.loads(body)["results"]],
    ),
    Door(
        *("/v1/embeddings", "openai", _json(lambda texts: {"model": MODEL, "input": texts})),
        lambda body: [each["embedding"] for each in json.loads(body)["data"]],
    ),
    Door(
        "/v1/embeddings",
        "openai",
        _json(lambda texts: {"model": MODEL, "input": texts, "encoding_format": "base64"}),
        _read_packed,
    ),
    Door("/embed", "tei", _json(lambda texts: {"inputs": texts}), json.loads),
    Door(
        *("/rerank", "tei", _json(lambda texts: {"query": QUERY, "texts": texts})),
        lambda body: _by_place(json.loads(body), "score"),
        ranks=True,
    ),
    Door(
        *("/v1/rerank", "rerank", _json(lambda texts: {"model": MODEL, "query": QUERY, "documents": texts})),
        lambda body: _by_place(json.loads(body)["results"], "relevance_score"),
        ranks=True,
    ),
    Door(
        f"/v2/models/{MODEL}/infer",
        "kserve",
        _json(lambda texts: {"inputs": [_tensor(texts, data=texts)]}),
        _read_tensor,
    ),
    Door(f"/v2/models/{MODEL}/infer", "kserve", _binary, _read_binary, headers=_binary_length),
)


def shares(texts: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """The texts of each call."""
    yield from (texts[at : at + most] for at in range(0, len(texts), most))

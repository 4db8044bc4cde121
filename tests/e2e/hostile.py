"""Hostile bodies and heads, and the answer to each."""

from __future__ import annotations

from collections.abc import Callable

from tests.bodies import SHAPES

BODIES: dict[str, tuple[Callable[[], bytes], int, str]] = {
    "oversized": (lambda: b'{"input": "' + b"x" * 1_048_576 + b'"}', 413, "PAYLOAD_TOO_LARGE"),
    "deeply nested": (lambda: b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "INVALID_JSON"),
    "deeply nested objects": (
        lambda: b'{"input": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        400,
        "INVALID_JSON",
    ),
    "the same name twice": (lambda: b'{"input": 1, "model": "echo", "model": "slow"}', 400, "INVALID_JSON"),
    "the same name twice among tens of thousands": (lambda: SHAPES["one name twice"](1_000_000), 400, "INVALID_JSON"),
    "every name twice": (lambda: SHAPES["every name twice"](600_000), 400, "INVALID_JSON"),
    "more objects than are read": (lambda: SHAPES["empty objects"](1_000_000), 400, "INVALID_JSON"),
    "a number of a million digits": (lambda: SHAPES["one whole number"](1_000_000), 400, "INVALID_INPUT"),
    "a lone surrogate": (lambda: b'{"input": "\\ud800"}', 400, "INVALID_JSON"),
    "not UTF-8": (lambda: b'{"input": "\xff"}', 400, "INVALID_JSON"),
    "NaN": (lambda: b'{"input": NaN}', 400, "INVALID_JSON"),
}


HEADS: dict[str, tuple[bytes, int]] = {
    "a bare CR in a value": (b"X-Request-Id: a\rX-Evil: 1\r\n", 400),
    "a bare LF in a value": (b"X-Request-Id: a\nX-Evil: 1\r\n", 400),
    "a folded line": (b"X-Request-Id: a\r\n X-Evil: 1\r\n", 400),
    "NUL": (b"X-Request-Id: a\0b\r\n", 400),
    "two credentials": (b"Authorization: Bearer a\r\n", 400),
    "a length and a coding": (b"Transfer-Encoding: chunked\r\n", 400),
    "encoded line breaks in the id": (b"X-Request-Id: a%0d%0aX-Evil:%201\r\n", 200),
    "a name with an underscore": (b"X_Tier: enterprise\r\n", 200),
}

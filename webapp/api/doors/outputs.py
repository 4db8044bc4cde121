"""Replies of `embed` and `rerank` models in the doors' forms.

An embedding stays the JSON text that the executor has encoded, numbers or base64, and is inserted into the answer. It
is parsed only where a model's API was asked directly (`webapp.fallback`), which knows no base64.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from tasks.errors import InferenceFailed
from tasks.protocol.results import Reply


class Told(msgspec.Struct):
    """The part that the doors read of a model's metadata; a value of another type counts as missing."""

    tokens_used: Any = 0
    truncated: Any = False


_told = msgspec.json.Decoder(Told).decode
_number = msgspec.json.Decoder(float).decode
_numbers = msgspec.json.Decoder(list[float]).decode


def told_of(reply: Reply) -> Told:
    return _told(reply.bunch)


def tokens_of(told: Sequence[Told]) -> int:
    """The tokens that the replies' models have counted."""
    return sum(each.tokens_used for each in told if type(each.tokens_used) is int)


def vector(reply: Reply, model: str) -> bytes:
    """An embedding as a JSON array of numbers. Raises InferenceFailed."""
    text = bytes(reply.result)
    # Enough to know a flat list: of numbers, unless its author has put `null` or `true` there.
    if text[:1] != b"[" or text.find(b"[", 1) > 0 or b'"' in text or b"{" in text or len(text) < len("[0]"):
        raise _not_a_vector(model)
    return text


def packed_vector(reply: Reply, model: str) -> bytes:
    """An embedding as a JSON string: base64 of little-endian float32. Raises InferenceFailed."""
    text = bytes(reply.result)
    if text[:1] == b'"':
        return text
    try:
        floats = array("f", _numbers(vector(reply, model)))
    except msgspec.MsgspecError:
        raise _not_a_vector(model) from None
    if not math.isfinite(sum(floats)):
        raise InferenceFailed(f"{model}: its output has numbers that are too large for float32")
    if sys.byteorder == "big":
        floats.byteswap()
    return b'"' + base64.b64encode(floats) + b'"'


def score(reply: Reply, model: str) -> float:
    """The number that a `rerank` model has returned. Raises InferenceFailed."""
    try:
        return _number(reply.result)
    except msgspec.MsgspecError:
        raise InferenceFailed(f"{model} has the task rerank; it must return a number for each pair") from None


def best_first(scores: Sequence[float]) -> list[int]:
    """The indices of the scores, best first; of equal ones in their order."""
    return sorted(range(len(scores)), key=lambda at: -scores[at])


def _not_a_vector(model: str) -> InferenceFailed:
    return InferenceFailed(f"{model} has the task embed; it must return a list of numbers for each input")

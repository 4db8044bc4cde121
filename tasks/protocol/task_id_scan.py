"""Whose result the refusal of a message is: the task id that it names, wherever it does.

    protocol 1   the body's id, then the headers', then `properties.correlation_id`
    protocol 2   the headers' id, then the body's, then the correlation id
    no JSON      whatever looks like one of these in its bytes

A caller who is answered under another id polls PENDING for ever. So this reads what no strict reader would: NaN, lone
surrogates, bytes that are no UTF-8, a message that was cut off.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any, NamedTuple

_PATTERNS = tuple(re.compile(rb'"%b"\s*:\s*"((?:[^"\\]|\\.)+)"' % name) for name in (b"id", b"correlation_id"))
_BODY = re.compile(rb'"body"\s*:\s*"((?:[^"\\]|\\.)*)')


class Named(NamedTuple):
    """The task id, or nothing; and whether a callback, a chain or a chord waits for the task's end."""

    task_id: str
    is_followed: bool


def named(message: bytes, body: bytes | str = b"") -> Named:
    """What a refused message names. `body` is its body where it could be unpacked; only then what follows is known."""
    envelope = _loads(message)
    if not isinstance(envelope, dict):
        return Named(_printed_id(message), False)
    headers, properties = _table(envelope.get("headers")), _table(envelope.get("properties"))
    content = _loads(body) if body else _unpacked(envelope.get("body"))
    old = _table(content)
    first, second = (headers, old) if headers.get("task") else (old, headers)
    ids = (first.get("id"), second.get("id"), properties.get("correlation_id"))
    task_id = next((found for found in map(_text, ids) if found), "") or _printed_id(message)
    embed = _table(content[2]) if isinstance(content, list) and len(content) == 3 else old
    is_followed = any(embed.get(name) for name in ("callbacks", "errbacks", "chain", "chord"))
    return Named(task_id, bool(body) and is_followed)


def _unpacked(body: object) -> Any:
    """A body that is text, base64, or no string at all."""
    if not isinstance(body, str):
        return body
    found = _loads(body)
    if found is None:
        try:
            found = _loads(base64.b64decode(body, validate=True))
        except (binascii.Error, ValueError):
            return None
    return found


def _loads(text: bytes | str) -> Any:
    """As kombu reads JSON, and beyond that with bytes replaced that are no UTF-8; None for what is no JSON."""
    try:
        return json.loads(text.decode(errors="replace") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError):
        return None


def _printed_id(message: bytes) -> str:
    """Of a message that is no JSON."""
    body = _BODY.search(message)
    text = (_text(_loads(b'"%b"' % body[1])) if body else "").encode()
    if text and not text.lstrip().startswith(b"{"):
        try:
            text = base64.b64decode(text[: len(text) // 4 * 4])
        except (binascii.Error, ValueError):
            text = b""
    # In the body of protocol 2 it may be anybody's: an argument's, a callback's.
    places = (message, text) if text.lstrip().startswith(b"{") else (message,)
    for pattern in _PATTERNS:
        for place in places:
            found = pattern.search(place)
            if found is not None:
                return _text(_loads(b'"%b"' % found[1]))
    return ""


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    """An id as a Redis key can hold it: Celery takes any string and any number for one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value).encode(errors="replace").decode()

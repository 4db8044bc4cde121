"""Finds the task id that an unreadable message names, so that its caller can be told.

    protocol 1   the body's id, then the headers', then `properties.correlation_id`
    protocol 2   the headers' id, then the body's, then the correlation id
    no JSON      whatever looks like one of these in its bytes

A caller who is answered under another id polls PENDING for ever. So this reads what a strict reader would not: NaN,
lone surrogates, bytes that are not UTF-8, a truncated message.
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
    """The task id, or an empty string; and whether a callback, a chain or a chord waits for the task's end."""

    task_id: str
    is_followed: bool


def named(message: bytes, body: bytes | str = b"") -> Named:
    """Read what a refused message names. Callbacks are known only if its `body` could be unpacked."""
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
    """Decode a body that is text, base64, or no string at all."""
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
    """Read JSON as kombu does, replacing bytes that are not UTF-8; None if it is no JSON."""
    try:
        return json.loads(text.decode(errors="replace") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError):
        return None


def _printed_id(message: bytes) -> str:
    """The task id of a message that is no JSON."""
    body = _BODY.search(message)
    text = (_text(_loads(b'"%b"' % body[1])) if body else "").encode()
    if text and not text.lstrip().startswith(b"{"):
        try:
            text = base64.b64decode(text[: len(text) // 4 * 4])
        except (binascii.Error, ValueError):
            text = b""
    # In the body of protocol 2 an id may be anything's: an argument's, a callback's.
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
    """An id as a Redis key can hold it: Celery takes any string and any number as one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value).encode(errors="replace").decode()

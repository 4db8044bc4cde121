"""Kombu's types in JSON: `{"__type__": "uuid", "__value__": …}` for UUID, datetime, Decimal, bytes, ….

A Celery client writes them by default, and a Celery task gets the values. So does a model, but only from messages of
Celery clients: in a request over HTTP the same text is a plain object. The executor alone decodes them; it recognises
such an input by a leading tab, which JSON allows and no other input has.
"""

from __future__ import annotations

from typing import Any

MARK = b"\t"
_NAME = b'"__type__"'


def marked(raw: bytes) -> bytes:
    """Mark the JSON of a Celery client's message if it may hold such values."""
    return MARK + raw if _NAME in raw else raw


def loads(raw: bytes) -> Any:
    """Decode as kombu does, including types that a model has registered with it.

    Raises:
        ValueError: it is not JSON, or of an unknown type.
    """
    # Imported here, since only such an input needs it.
    from kombu.utils import json

    try:
        return json.loads(raw)  # type: ignore[no-untyped-call]
    except ValueError:
        raise
    except Exception as error:
        # Any exception that a decoder raises for a value of the wrong type.
        raise ValueError(f"{type(error).__name__} in a value of kombu's types") from error

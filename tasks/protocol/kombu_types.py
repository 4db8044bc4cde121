"""What kombu's JSON says beyond JSON: `{"__type__": "uuid", "__value__": …}` for UUID, datetime, Decimal, bytes, ….

A Celery client writes them so without being asked, and a Celery task gets the values. So does a model, of messages of
Celery clients alone: from a caller over HTTP the same text is a plain object. Only the executor makes objects of
inputs; it knows such an input by a tab in front, which JSON allows and no other input has.
"""

from __future__ import annotations

from typing import Any

MARK = b"\t"
_NAME = b'"__type__"'


def marked(raw: bytes) -> bytes:
    """JSON of a Celery client's message, marked if it may hold such values."""
    return MARK + raw if _NAME in raw else raw


def loads(raw: bytes) -> Any:
    """As kombu decodes it, also types that a model has registered there.

    Raises:
        ValueError: it is not JSON, or of no known type.
    """
    # Here: no model needs it but for such an input.
    from kombu.utils import json

    try:
        return json.loads(raw)  # type: ignore[no-untyped-call]
    except ValueError:
        raise
    except Exception as error:
        # Whatever a decoder makes of a value that is none of its type.
        raise ValueError(f"{type(error).__name__} in a value of kombu's types") from error

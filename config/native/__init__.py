"""The inner functions of the hot path in C: optional, compiled by `python -m config.native.build`.

    message_rest  tasks.protocol.outgoing    a submission ─▶ the message that `submit.lua` completes
    read_plain    tasks.protocol.messages    a frontend's message ─▶ the fields of its request
    result        tasks.protocol.results     an outcome ─▶ the result that Celery's readers expect
    body_of       webapp.http.head           a request with a known head ─▶ its body
    unfilled      webapp.http.sized          a size ─▶ bytes that a body is received into
    plain_input   webapp.api.short_inference a body with a string in it ─▶ its input as JSON, its model
    answer        webapp.api.inference       a reply ─▶ the body and the `Server-Timing` of a response
    response      webapp.http.response       status, fields and body ─▶ the bytes of a response

Each has a twin in Python, which is the specification: it runs where no compiler was found, and wherever the function in
C returns None because a case is not the plain one. `tests/unit/test_native.py` holds the two together. Without it a
request costs about a tenth more processor time, and nothing else differs.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("hot_path.c")


def source_hash() -> str:
    """The hash that a library made of today's source has."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]


def load() -> Any:
    """The library, if it is there and of this source; else None."""
    try:
        from config.native import _hot_path  # type: ignore[attr-defined]

        # A library of an older source would speak an older format.
        return _hot_path if not SOURCE.exists() or source_hash() == _hot_path.SOURCE_HASH else None
    except (ImportError, OSError):
        return None


hot_path: Any = None if os.environ.get("BUNCH_NATIVE") == "off" else load()
"""The compiled module; None where there is none of this source, or `BUNCH_NATIVE=off`."""

"""The inner functions of the hot path in C: optional, compiled by `python -m config.native.build`.

    message_rest  tasks.protocol.outgoing    a submission ─▶ the message that `submit.lua` completes
    packed        config.redis               a command ─▶ its bytes
    entries       batching.claim.lease       a claim's reply ─▶ its entries
    read_fresh    tasks.protocol.messages    a claim's entries ─▶ the requests that can run as they are
    read_plain    tasks.protocol.messages    a frontend's message ─▶ the fields of its request
    results       tasks.protocol.results     a batch's outcomes ─▶ the results that Celery's readers expect
    result        tasks.protocol.results     the same of one outcome
    outcome_words batching.outcome_rows      a batch's results ─▶ the words that `finish.lua` reads
    members       tasks.observers.batch_log  a batch's requests ─▶ the members of its record
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
# It includes the others.
SOURCES = (SOURCE, SOURCE.with_name("batches.c"))


def source_hash() -> str:
    """The hash that a library made of today's source has."""
    return hashlib.sha256(b"".join(each.read_bytes() for each in SOURCES)).hexdigest()[:16]


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

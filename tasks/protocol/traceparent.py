"""W3C trace context, as far as it is needed without OpenTelemetry: parse, check, and pass on in each message.

    caller ──traceparent, tracestate──▶ frontend ──message headers──▶ worker

It is passed on whether or not this installation exports spans (`tasks/observability/otel.py`): the caller's own traces
stay whole, and log lines can be found by their trace id.
"""

from __future__ import annotations

import re

# Version 00, and what a later version begins with; a version of ff and ids of zeros are invalid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_LENGTH = 55
# A list of vendors' `key=value`, passed on unchanged: the allowed characters, and the size that receivers must accept.
_KEY = r"(?:[a-z0-9][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_MEMBER = _KEY + r"=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
_TRACESTATE = re.compile(rf"[ \t,]*{_MEMBER}(?:[ \t]*,[ \t,]*{_MEMBER})*[ \t,]*")
_MAX_STATE = 512
_MAX_MEMBERS = 32


def valid(header: str | None) -> str:
    """The header in the form of version 00; empty for none, and for an invalid one."""
    if not header or not _TRACEPARENT.fullmatch(header) or (header.startswith("00") and len(header) != _LENGTH):
        return ""
    return f"00{header[2:_LENGTH]}"


def valid_state(header: str | None) -> str:
    """A `tracestate` unchanged; empty for none, and for one that receivers need not accept."""
    if not header or len(header) > _MAX_STATE or not _TRACESTATE.fullmatch(header):
        return ""
    return header if header.count("=") <= _MAX_MEMBERS else ""


def make(trace_id: int, span_id: int) -> str:
    """The context of a span of our own. It is always sampled: others are not made."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def is_sampled(traceparent: str) -> bool:
    return bool(traceparent) and int(traceparent[53:55], 16) & 1 == 1


def trace_id(traceparent: str) -> str:
    """The trace id, for log lines; empty when there is none."""
    return traceparent[3:35]

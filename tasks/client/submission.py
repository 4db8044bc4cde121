"""A request as its caller made it: what the frontend's parsing hands to `Client.submit`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from config.tiers import Tier
from tasks.protocol.binary import wrapped, wrapped_length
from tasks.protocol.caller import Caller

NO_PARAMETERS = b"{}"
# Of the characters that a JSON string escapes, those that JSON itself has.
_ESCAPED = (b'"', b"\\", b"\n", b"\r", b"\t")


class Submission(msgspec.Struct, frozen=True):
    """One request, validated, before it has a task id.

    Args:
        caller: its owner, and the tier and limits that it has.
        input: one JSON value, UTF-8; or the bytes themselves, if it is `binary`.
        timeout_s: the caller's deadline in seconds from the submission, above 0.
        parameters: one JSON object.
        waits: False for a caller who polls: `Client.receipt` then waits for the queue only, and the result is kept
            longer.
        request_id: the caller's own id for it, if it gave one.
        client_id: the caller's name for the client that sent it: for log, ledger and traces.
        traceparent: the trace that it belongs to, valid, or empty.
        tracestate: the vendors' part of that trace context, valid, or empty.
        idempotency_key: the caller's; of the requests that it sends with the same key, only the first is run. That one
            goes on, and its result is kept for polling, even if its caller disconnects.
        call_hash: `tasks.client.dedup.call_hash` of a call of several requests; with the same key a different call is
            refused as a whole.
        fresh: compute it, even if an identical request has an answer.
        keep_ms: how long its result is kept at least, for a caller who does not wait.
        hung_up: tells whether the caller has disconnected; such a request is cancelled if it still waits.
        asked: with an idempotency key, the name that the caller used for a model of several versions: its repetition is
            the same request when the name leads to another version.
        binary: the input is bytes, for a model whose `input_type` is not `json`.
        takes_bytes: an output that is bytes may come as a `BytesReply`.
    """

    model: str
    caller: Caller
    input: bytes
    timeout_s: float
    parameters: bytes = NO_PARAMETERS
    waits: bool = True
    request_id: str = ""
    client_id: str = ""
    traceparent: str = ""
    tracestate: str = ""
    idempotency_key: str = ""
    call_hash: bytes = b""
    fresh: bool = False
    keep_ms: int = 0
    hung_up: Callable[[], bool] | None = None
    asked: str = ""
    binary: bool = False
    takes_bytes: bool = False

    @property
    def input_json(self) -> bytes:
        """The input as a message has it. That of bytes is made anew each time."""
        return wrapped(self.input) if self.binary else self.input

    @property
    def tier(self) -> Tier:
        return self.caller.tier

    @property
    def queued_bytes(self) -> int:
        """The bytes of its input and parameters in the queue, as JSON within JSON, where some characters are two."""
        if self.binary:
            # Base64 has no character that is escaped.
            return wrapped_length(self.input) + _escaped_length(self.parameters)
        return _escaped_length(self.input) + _escaped_length(self.parameters)


def _escaped_length(value: bytes) -> int:
    return len(value) + sum(map(value.count, _ESCAPED))


def scoped(request_id: str, owner: str) -> str:
    """Scope a request id to its owner, since two owners may use the same."""
    return f"{owner}/{request_id}" if owner else request_id

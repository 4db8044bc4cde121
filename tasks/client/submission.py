"""A request as its caller made it: what the frontend's parsing hands to `Client.submit`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from config.tiers import Tier
from tasks.protocol.caller import Caller

NO_PARAMETERS = b"{}"


class Submission(msgspec.Struct, frozen=True):
    """One request, validated, before it has a task id.

    Args:
        caller: whose it is, and whose tier and limits it has.
        input: one JSON value, UTF-8.
        timeout_s: the caller's deadline in seconds from when it is submitted, above 0.
        parameters: one JSON object.
        waits: False for a caller who polls: `Client.receipt` then waits for the queue only, and the result is kept
            longer.
        request_id: the caller's own name for it, when it gave one.
        client_id: which of the caller's clients it is, as the caller calls it: for log, ledger and traces.
        traceparent: the trace that it belongs to, valid, or empty.
        tracestate: what vendors have added to that trace, valid, or empty.
        idempotency_key: the caller's; of the requests that it sends with the same one, only the first is run. That
            goes on, and its result is kept for those who poll, also when its caller has gone.
        call_hash: `tasks.client.dedup.call_hash` of a call of several requests; with its key, another is refused
            as a whole.
        fresh: to be computed for this caller, whatever was answered to others.
        hung_up: whether the caller has gone meanwhile; such a request is taken back, if it still waits.
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
    hung_up: Callable[[], bool] | None = None

    @property
    def tier(self) -> Tier:
        return self.caller.tier

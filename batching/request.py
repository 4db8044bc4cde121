"""A request as the worker sees it, its possible outcomes, and a batch on its way to the model and back.

Request ──executor──▶ Ok        the model's output for this input
                    │ Rejected  the model refused this input (422); its neighbours are unharmed
                    │ Failed    the model or its worker broke, and attempts are used up (500)
                    └ Expired   its time had passed before the executor saw it (504)
                      Cancelled its caller took it back before the executor saw it

    claim loop ──Work──▶ executor, and its process
               ◀──Done──

A worker and its executor's process exchange these values (`workers.executor.ipc`) as MessagePack arrays.
"""

from __future__ import annotations

from base64 import b64encode
from enum import Enum
from typing import TypeAlias

import msgspec

from batching.blobs.reference import BlobRef
from config.tiers import Tier


class Request(msgspec.Struct, eq=False):
    """One claimed message, decoded as far as the worker needs it.

    `input` and `parameters` stay JSON bytes: only the executor, on a core of its own, decodes them.
    Times are Redis time in milliseconds since the epoch, because the clocks of frontends and workers may differ; 0
    means that the sender gave none. `attempt` counts from 1; `lost` is the number of executors that died with it
    inside. `sent_ms` is from the clock of the frontend that sent it, for `explain` alone.
    A `result_ttl_ms` of 0 stores no result. `canvas` is the whole message, when something follows after this task.
    If it is not `tracked`, nobody knows its id before it has ended. `owner` is empty with auth off. `request_id` is the
    caller's own id, if it gave one; `traceparent` is its W3C trace, `tracestate` the vendors' additions. `client_id` is
    the client of the owner, if the caller named one. `question` identifies equal requests, or is empty; its answer is
    cached for `keep_ms`.
    With a `blob`, `input` is the reference to it.
    A `sealed` request is known to come from a frontend of ours; a `foreign` one does not, and its result replaces no
    other one (`tasks.protocol.seal`).
    """

    id: str
    tier: Tier
    position: int
    input: bytes
    parameters: bytes
    attempt: int = 1
    lost: int = 0
    enqueued_ms: int = 0
    deadline_ms: int = 0
    result_ttl_ms: int = 0
    reply_to: str = ""
    eta_ms: int = 0
    canvas: bytes = b""
    tracked: bool = True
    sent_ms: int = 0
    owner: str = ""
    traceparent: str = ""
    request_id: str = ""
    question: str = ""
    keep_ms: int = 0
    tracestate: str = ""
    client_id: str = ""
    sealed: bool = False
    foreign: bool = False
    blob: BlobRef | None = None


RAW_BYTES = 32 * 1024
"""The size from which on an executor leaves an output that is bytes as it is."""

# Our own names in the metadata of an answer: a model's members with these names are left out.
OWN_METADATA = frozenset(
    {
        *("latency_ms", "reply_ms", "admission_ms", "queue_ms", "batch_wait_ms", "transfer_ms", "compute_ms", "reason"),
        *("batch_size", "batch_id", "tier", "attempt", "cached", "collapsed", "model_version", "code"),
        "output_type",
    }
)


class Ok(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The model's output. `output` is JSON bytes, encoded by the executor and never decoded again on the way to the
    caller. Where it is `raw`, it is the bytes themselves: a large output that is bytes, from the executor until it is
    laid aside.

    `metadata` has members of a JSON object, one after the other, which the model adds to the metadata of the answer.
    """

    output: bytes
    metadata: bytes = b""
    raw: bool = False

    def in_json(self) -> Ok:
        """The same as JSON: bytes are a text of base64."""
        return Ok(quoted_base64(self.output), self.metadata) if self.raw else self


def quoted_base64(raw: bytes) -> bytes:
    """The JSON of an output that is bytes."""
    return b'"%b"' % b64encode(raw)


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The model's own refusal of one input."""

    message: str
    exc_type: str = "InputRejected"


class Words(str, Enum):
    """The origin of a failure's message and traceback, which decides who may read them (`tasks.protocol.disclosure`).

    `ours` is a text of this project, for everybody. `input` is the model's text about this one input. `call` is its
    text about a call with several inputs, or the text of a remote API: it may contain any caller's data.
    """

    OURS = "ours"
    INPUT = "input"
    CALL = "call"


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An error that is not the caller's. `code` is one of the contract's; `retryable`: it may pass the next time.

    `message` and `traceback` have all that is known, for log and dead letter. `public` is the text for callers, in
    place of a message that is not for them; empty: callers only learn that the model failed.
    """

    message: str
    exc_type: str = "InferenceFailed"
    code: str = "INFERENCE_FAILED"
    traceback: str | None = None
    retryable: bool = False
    words: Words = Words.OURS
    public: str = ""


class Expired(msgspec.Struct, frozen=True):
    """Dropped before the executor: the deadline, or the queue's age limit, had passed."""

    message: str = "the deadline of the request passed before an executor was free"


class Cancelled(msgspec.Struct, frozen=True):
    """Dropped before the executor: cancelled by its caller."""

    message: str = "the request was cancelled"


Outcome: TypeAlias = Ok | Rejected | Failed | Expired | Cancelled


class Work(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A batch for the executor: n inputs and n parameters as JSON bytes.

    `safe_size` is the largest part that is known to fit into the device's memory, None while no limit is known.
    `suspect`: an executor's process has ended with these inputs inside. `last_try`: some of them are not tried again.
    `traceparents` are those of the requests, n of them or none. `may_end`: the process may ask to be replaced instead
    of answering; the executor decides that. `raw` has the places of inputs that are the bytes themselves, not JSON.
    """

    batch_id: str
    inputs: list[bytes]
    parameters: list[bytes]
    safe_size: int | None = None
    suspect: bool = False
    last_try: bool = False
    traceparents: list[str] = []
    may_end: bool = True
    raw: list[int] = []


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A finished batch: exactly one outcome per input, in order.

    `passes` is the number of calls of the model: more than one when the batch was run in parts to find a culprit.
    `safe_size` is the size that fitted into the device's memory, None unless memory ran out in this batch. `collapsed`
    is the number of requests that were answered by the output of an equal one. `padding` is the number of inputs that
    the model got besides theirs, so that the size was one of `batch_sizes`.
    """

    batch_id: str
    compute_s: float
    outcomes: list[Ok | Rejected | Failed]
    passes: int = 1
    safe_size: int | None = None
    collapsed: int = 0
    padding: int = 0

"""A request as the worker sees it, what can become of it, and a batch of them on its way to the model and back.

Request ──executor──▶ Ok        the model's output for this input
                    │ Rejected  the model refused this input (422); its neighbours are unharmed
                    │ Failed    the model or its worker broke, and attempts are used up (500)
                    └ Expired   its time had passed before the executor saw it (504)
                      Cancelled its caller took it back before the executor saw it

    claim loop ──Work──▶ executor, and its process
               ◀──Done──

A worker and its executor's process send each other these very values (`workers.executor.ipc`), as MessagePack arrays.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

from config.tiers import Tier


class Request(msgspec.Struct, eq=False):
    """One claimed message, decoded as far as the worker needs it.

    `input` and `parameters` stay JSON bytes: only the executor, on a core of its own, turns them into objects.
    Times are Redis time in milliseconds since the epoch, because frontends and workers may disagree about theirs;
    0 means that the sender gave none. `attempt` counts from 1; `lost` is how many executors died with it inside.
    `sent_ms` is by the clock of the frontend that sent it, for `explain` alone.
    A `result_ttl_ms` of 0 stores no result. `canvas` is the whole message, when something follows after this task.
    Of a request that is not `tracked`, nobody knows the id before it has ended. `owner` is empty with auth off.
    `request_id` is the caller's own name for it, if it gave one; `traceparent` is the W3C trace that it belongs to,
    `tracestate` what vendors have added to that. `client_id` is which of its clients asked, if its caller said so.
    `question` is what others may ask too, or empty; its answer is kept for `keep_ms`.
    A `sealed` one is known to come from a frontend of ours; a `foreign` one does not, and its result takes no other's
    place (`tasks.protocol.seal`).
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


# Ours in the metadata of an answer: a model's own of these names are left out.
OWN_METADATA = frozenset(
    {
        *("latency_ms", "reply_ms", "admission_ms", "queue_ms", "batch_wait_ms", "transfer_ms", "compute_ms", "reason"),
        *("batch_size", "batch_id", "tier", "attempt", "cached", "collapsed", "model_version", "code"),
    }
)


class Ok(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """`output` is JSON bytes, encoded by the executor and never decoded again on the way to the caller.

    `metadata` has members of a JSON object, one behind the other: what the model adds to the metadata of the answer.
    """

    output: bytes
    metadata: bytes = b""


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The model's own refusal of one input."""

    message: str
    exc_type: str = "InputRejected"


class Words(str, Enum):
    """Whose words a failure's message and traceback are, which decides who may read them (`tasks.protocol.disclosure`).

    `ours` are this project's, for everybody. `input` are the model's about this one input. `call` are the model's about
    a call with several inputs, or what an API said that we asked: they may hold anybody's data.
    """

    OURS = "ours"
    INPUT = "input"
    CALL = "call"


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An error that is not the caller's. `code` is one of the contract's; `retryable`: it may pass the next time.

    `message` and `traceback` are all that is known, as log and dead letter have it. `public` is what a caller is told
    in place of a message that is not for callers; empty: that the model failed, and no more.
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
    """A batch on its way in: n inputs and n parameters as JSON bytes.

    `safe_size` is the largest part of it that the device's memory is known to have room for, None while any will do.
    `suspect`: an executor's process has ended with these inputs inside. `last_try`: some of them are not tried again.
    `traceparents` are the requests' own, n of them or none. `may_end`: the process may ask to be replaced, instead of
    answering what it has; the executor decides that.
    """

    batch_id: str
    inputs: list[bytes]
    parameters: list[bytes]
    safe_size: int | None = None
    suspect: bool = False
    last_try: bool = False
    traceparents: list[str] = []
    may_end: bool = True


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A batch on its way out: exactly one outcome per input, in order.

    `passes` is how often the model was called: once, or more where the batch was run in parts to find a culprit.
    `safe_size` is what the device's memory turned out to have room for, None unless it ran out in this very batch.
    `collapsed` is how many of its requests were answered by an equal one's output.
    """

    batch_id: str
    compute_s: float
    outcomes: list[Ok | Rejected | Failed]
    passes: int = 1
    safe_size: int | None = None
    collapsed: int = 0

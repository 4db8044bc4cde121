"""Results: the JSON that Celery's readers expect under `celery-task-meta-<id>`, with Bunch's metadata beside it.

    {"status":"SUCCESS","result":<output>,"traceback":null,"children":[],"date_done":…,"task_id":…,"bunch":{…}}

An output is spliced in as the executor encoded it. A failure carries its contract code in `bunch.code`: readers map by
that code, never by the exception's class, which they may not have. The result of a request that a frontend has sealed
has `"owned":true` after its status: no result of a foreign message replaces it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import structs

from batching.claim.lease import Entry
from batching.claim.store import Settled
from batching.coalescing import Coalesced
from batching.ports import BatchInfo
from batching.request import (
    OWN_METADATA,
    Cancelled,
    Expired,
    Failed,
    Ok,
    Outcome,
    Rejected,
    Request,
    quoted_base64,
)
from config.keys import REPLY_PREFIX
from config.native import hot_path
from config.tiers import TIERS
from tasks.protocol.disclosure import Disclosure
from tasks.protocol.envelope import MOST_BYTES
from tasks.protocol.messages import read_fresh, read_message
from tasks.protocol.seal import Seal

_encode = msgspec.json.Encoder().encode
_MAX_TRACEBACK = 8_000
_CODES_OF_REFUSALS = {"InvalidInput": "INVALID_INPUT", "PayloadTooLarge": "PAYLOAD_TOO_LARGE"}
_TIER_NAMES = {tier: tier.value for tier in TIERS}


class Reply(msgspec.Struct):
    """A stored result as the frontend reads it; `result` and `bunch` stay bytes until they are needed.

    `date_done` is the time of its end in Celery's form: ISO 8601, UTC.
    """

    task_id: str
    status: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    bunch: msgspec.Raw = msgspec.Raw(b"{}")
    traceback: str | None = None
    date_done: str | None = None

    def in_json(self) -> Reply:
        """The same with its output as JSON."""
        return self


class BytesReply(Reply):
    """A reply whose output is bytes, for a reader that asks for them: they are in `data`, and not in `result`."""

    data: bytes = b""

    def in_json(self) -> Reply:
        result = msgspec.Raw(quoted_base64(self.data))
        return Reply(self.task_id, self.status, result, self.bunch, self.traceback, self.date_done)


class ErrorResult(msgspec.Struct):
    """The `result` field of a failed task, in Celery's form."""

    exc_type: str = ""
    exc_message: list[object] | str = ""
    exc_module: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.exc_message, str):
            return self.exc_message
        return " ".join(str(part) for part in self.exc_message)


class Details(msgspec.Struct):
    """The `bunch` field of a result."""

    admission_ms: float = 0.0
    queue_ms: float = 0.0
    batch_wait_ms: float = 0.0
    transfer_ms: float = 0.0
    compute_ms: float = 0.0
    reason: str = ""
    batch_size: int = 0
    batch_id: str = ""
    tier: str = ""
    attempt: int = 1
    cached: bool = False
    model_version: str = ""
    code: str = ""


class DeadLetter(msgspec.Struct):
    """An operator's view of a request that failed for good. `failed_at` is epoch seconds."""

    id: str
    model: str
    tier: str
    reason: str
    exc_type: str
    traceback: str
    attempts: int
    lost: int
    batch_id: str
    enqueued_ms: int
    failed_at: float


decode_reply = msgspec.json.Decoder(Reply).decode
decode_replies = msgspec.json.Decoder(list[Reply]).decode
decode_error = msgspec.json.Decoder(ErrorResult).decode
decode_details = msgspec.json.Decoder(Details).decode

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# The end of a `bunch` to which a model has added nothing: nearly all, and this is a fifth of decoding one.
_NOTHING_ADDED = re.compile(rb'"model_version":"[^"\\]*"\}\Z')

FINISHED = frozenset({"SUCCESS", "FAILURE", "REVOKED", "REJECTED", "IGNORED"})


# The same pattern as in `batching/lua/finish.lua`.
_OF_A_FRONTEND = re.compile(
    rb'\{"status":"[A-Z]+",("owned":true|"result":null,"traceback":null,"children":\[\],"date_done":null)'
)


def is_of_a_frontend(stored: bytes) -> bool:
    """True if the value stored under an id is the state, or the result with an owner, of a frontend's request."""
    return _OF_A_FRONTEND.match(stored) is not None


def model_metadata(bunch: msgspec.Raw) -> bytes:
    """The JSON object of what the model has added to a result's `bunch`; empty if that is nothing."""
    if len(bunch) <= len("{}") or _NOTHING_ADDED.search(bunch):
        return b""
    theirs = {name: value for name, value in _decode_members(bunch).items() if name not in OWN_METADATA}
    return _encode(theirs) if theirs else b""


class CeleryCodec:
    """`batching.ports.Codec`: reads Celery's messages, writes Celery's results.

    `most_bytes` limits the size of a compressed body after decompression; `seal` verifies frontends' messages.
    """

    def __init__(
        self,
        default_ttl_ms: int,
        disclosure: Disclosure | None = None,
        most_bytes: int = MOST_BYTES,
        seal: Seal | None = None,
    ) -> None:
        self._default_ttl_ms = default_ttl_ms
        self._most_bytes = most_bytes
        self._seal = seal
        self._disclosure = disclosure or Disclosure()
        # The common part of the results of the current batch; with several loops, of one loop's.
        self._common: tuple[BatchInfo | None, str, bytes] = (None, "", b"")

    def decode(self, entry: Entry) -> Request:
        return read_message(entry, self._default_ttl_ms, self._most_bytes, self._seal)

    def decode_fresh(self, entries: tuple[Entry, ...], now_ms: int) -> list[Request | None]:
        return read_fresh(entries, now_ms, self._seal)

    def encode_all(self, outcomes: list[tuple[Request, Outcome]], batch: BatchInfo) -> list[Settled]:
        if _results is None:
            return [self.encode(request, outcome, batch) for request, outcome in outcomes]
        common, date_done = self._common_of(batch)
        about = (Request, Ok, Settled, _TIER_NAMES, REPLY_PREFIX, batch.claimed_ms, date_done, common)
        results: list[Any] = _results(outcomes, *about)
        if not all(results):
            pairs = zip(results, outcomes, strict=True)
            results = [made or self.encode(request, outcome, batch) for made, (request, outcome) in pairs]
        return results

    def encode(self, request: Request, outcome: Outcome, batch: BatchInfo) -> Settled:
        added, attempt = b"", request.attempt
        if isinstance(outcome, Ok):
            if outcome.metadata:
                added = b"," + outcome.metadata
        elif isinstance(outcome, Failed):
            attempt = max(1, _tried(request, batch))
            message, details = self._disclosure.told(outcome, request.owner)
            outcome = structs.replace(outcome, message=message, traceback=details)
        status, result, code, traceback = _parts(outcome)
        waited_ms = max(0, batch.claimed_ms - request.enqueued_ms) if request.enqueued_ms else 0
        admitted_ms = max(0, request.enqueued_ms - request.sent_ms) if request.sent_ms and request.enqueued_ms else 0
        common, date_done = self._common_of(batch)
        if code:
            common += f',"code":"{code}"'
        head = (status, request.sealed, result, traceback, date_done, request.id)
        parts = (*head, admitted_ms, waited_ms, _TIER_NAMES[request.tier], attempt, common, added)
        meta = (_result and _result(*parts)) or result_json(*parts)
        asked = None
        if request.question:
            asked = _asked(request, outcome, batch)
        reply_to = request.reply_to if request.reply_to.startswith(REPLY_PREFIX) else ""
        announce = request.tracked or not reply_to
        place = (request.position, request.id, request.result_ttl_ms, reply_to)
        return Settled(*place, meta, b"", announce, asked, request.foreign)

    def _common_of(self, batch: BatchInfo) -> tuple[str, bytes]:
        of, common, date_done = self._common
        if of is not batch:
            _, common, date_done = self._common = (batch, _times(batch), _now_iso())
        return common, date_done

    def dead_letter(self, request: Request, failure: Failed, batch: BatchInfo) -> bytes:
        record = DeadLetter(
            id=request.id,
            model=batch.model,
            tier=request.tier.value,
            reason=failure.message,
            exc_type=failure.exc_type,
            traceback=(failure.traceback or "")[-_MAX_TRACEBACK:],
            attempts=_tried(request, batch),
            lost=request.lost,
            batch_id=batch.batch_id,
            enqueued_ms=request.enqueued_ms,
            failed_at=time.time(),
        )
        return _encode(record)


def result_json(
    status: bytes,
    owned: bool,
    output: bytes,
    traceback: bytes,
    date_done: bytes,
    task_id: str,
    admission_ms: int,
    queue_ms: int,
    tier: str,
    attempt: int,
    common: str,
    added: bytes,
) -> bytes:
    """The stored result. `output` and `traceback` are JSON, `common` and `added` members of its `bunch`; `added` is
    empty or begins with a comma.
    """
    about = f'{{"admission_ms":{admission_ms},"queue_ms":{queue_ms},"tier":"{tier}","attempt":{attempt},{common}'
    return b"".join(
        (
            b'{"status":"',
            status,
            b'","owned":true,"result":' if owned else b'","result":',
            output,
            b',"traceback":',
            traceback,
            b',"children":[],"date_done":"',
            date_done,
            b'","task_id":',
            _encode(task_id),
            b',"bunch":',
            about.encode(),
            added,
            b"}}",
        )
    )


# The same in C; None where it was not compiled.
_result: Callable[..., bytes | None] | None = hot_path.result if hot_path is not None else None
# The same for all outputs of a batch.
_results: Callable[..., list[Any]] | None = hot_path.results if hot_path is not None else None


def code_of(outcome: Outcome) -> str:
    """The contract's code of an outcome; empty for an output and for a cancelled request."""
    match outcome:
        case Rejected():
            return _CODES_OF_REFUSALS.get(outcome.exc_type, "INPUT_REJECTED")
        case Failed():
            return outcome.code
        case Expired():
            return "DEADLINE_EXCEEDED"
        case _:
            return ""


def _parts(outcome: Outcome) -> tuple[bytes, bytes, str, bytes]:
    match outcome:
        case Ok():
            return b"SUCCESS", outcome.output, "", b"null"
        case Rejected():
            return b"FAILURE", _error(outcome.exc_type, outcome.message), code_of(outcome), b"null"
        case Failed():
            traceback = _encode((outcome.traceback or "")[-_MAX_TRACEBACK:] or None)
            return b"FAILURE", _error(outcome.exc_type, outcome.message), outcome.code, traceback
        case Expired():
            return b"FAILURE", _error("DeadlineExceeded", outcome.message), code_of(outcome), b"null"
        case Cancelled():
            return b"REVOKED", _error("TaskRevokedError", outcome.message, "celery.exceptions"), "", b"null"


def _error(exc_type: str, message: str, module: str = "tasks.errors") -> bytes:
    return _encode({"exc_type": exc_type, "exc_message": [message], "exc_module": module})


def _tried(request: Request, batch: BatchInfo) -> int:
    """The attempts that a failed request has had: the one that is counted was not made where nothing was computed."""
    return request.attempt if batch.compute_s else request.attempt - 1


def _times(batch: BatchInfo) -> str:
    transfer_s = max(0.0, batch.turn_s - batch.compute_s)
    return (
        f'"batch_wait_ms":{batch.wait_s * 1000:.3f},"transfer_ms":{transfer_s * 1000:.3f},'
        f'"compute_ms":{batch.compute_s * 1000:.3f},"reason":"{batch.reason.value}",'
        f'"batch_size":{batch.size},"batch_id":"{batch.batch_id}",'
        f'"cached":false,"model_version":{_encode(batch.version).decode()}'
    )


def _asked(request: Request, outcome: Outcome, batch: BatchInfo) -> Coalesced:
    if isinstance(outcome, Ok):
        keep_ms, shared, attempts = request.keep_ms, True, request.attempt
    else:
        # An outcome that was not computed, or may differ next time, does not answer identical requests.
        untried = isinstance(outcome, Expired | Cancelled)
        passing = isinstance(outcome, Failed) and outcome.retryable
        keep_ms, shared, attempts = 0, not (untried or passing), request.attempt - untried
    return Coalesced(request.question, batch.model, batch.claimed_ms, keep_ms, shared, attempts, request.lost)


def _now_iso() -> bytes:
    return datetime.now(UTC).isoformat(timespec="milliseconds").encode()

"""Reads task messages.

They are our own (`tasks.protocol.outgoing` writes them) and any Celery client's: protocol 1 and 2; JSON; base64 or
UTF-8 body; compressed or not. A message that cannot be a task raises `batching.ports.UnreadableMessage`, under the id
that it names in any place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from batching.blobs.reference import (
    CLIENT_PREFIX,
    OURS,
    BlobRef,
    NotAReferenceError,
    is_ours,
    is_reference,
    read_reference,
)
from batching.claim.lease import Entry, Verdict
from batching.fast_header import read_fast_header, read_times
from batching.ports import UnreadableMessage
from batching.request import Request
from config.keys import REPLY_PREFIX, TASK_NAME
from config.native import hot_path
from config.tiers import TIERS
from tasks.client.dedup import read_mark
from tasks.client.submission import NO_PARAMETERS
from tasks.protocol.caller import valid_client_id
from tasks.protocol.envelope import (
    MOST_BYTES,
    Headers,
    Keywords,
    Properties,
    body_of,
    headers_of,
    parts_of,
    read_envelope,
    read_protocol1,
)
from tasks.protocol.kombu_types import marked
from tasks.protocol.seal import Seal
from tasks.protocol.task_id_scan import named
from tasks.protocol.traceparent import valid, valid_state

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode

# Fifteen digits: the year 33658.
_LATEST_MS = 10**15
# The form in which `batching/lua/message.lua` counts deliveries of other clients' messages.
_COUNTED = re.compile(rb'"headers": \{"bunch_attempt": (\d\d?)')
# RecursionError: an input nested a thousand deep is still valid JSON.
_UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
_one_value = msgspec.json.Decoder(msgspec.Raw)
# Reads what `outgoing.MessageWriter` writes, without parameters and a trace; None where it was not compiled.
_read_plain: Callable[[bytes], tuple[Any, ...] | None] | None = hot_path.read_plain if hot_path is not None else None
# The same for all messages of a claim.
_read_fresh: Callable[..., tuple[list[Any], list[tuple[int, str, str]]]] | None = (
    hot_path.read_fresh if hot_path is not None else None
)
_FRESH = (Entry, Request, Verdict.RUN, TIERS, NO_PARAMETERS, _one_value.decode, OURS)


def read_message(entry: Entry, default_ttl_ms: int, most_bytes: int = MOST_BYTES, seal: Seal | None = None) -> Request:
    """Decode one claimed message: ours, or any Celery client's in protocol 1 or 2.

    Args:
        default_ttl_ms: how long to keep the result of a message that does not say.
        most_bytes: the limit of a compressed body's size after decompression.
        seal: verifies frontends' messages; None: every message is trusted.

    Raises:
        UnreadableMessage: with the reason, the task id if the message names one anywhere, and whether anything was to
            follow after the task.
    """
    raw = entry.message
    if _read_plain is not None and (plain := _read_plain(raw)) is not None:
        request = _plain_request(entry, seal, *plain)
        if request is not None:
            return request
    body: bytes | str = b""
    part = "not a task message: "
    try:
        envelope = read_envelope(raw)
        part = ""
        body = body_of(envelope, most_bytes)
        headers, args, keywords, embed = parts_of(envelope, body)
        request = _request(entry, headers, envelope.properties, args, keywords, default_ttl_ms)
        if seal is not None:
            _check_seal(request, headers.bunch_seal, headers.bunch_once, seal)
        if headers.bunch_once:
            request.question, request.keep_ms = read_mark(headers.bunch_once)
        if is_reference(request.input):
            request.blob = _blob_of(request)
    except (UnreadableMessage, *_UNREADABLE) as error:
        who = named(raw, body)
        raise UnreadableMessage(f"{part}{error}", who.task_id, raw if who.is_followed else b"") from error
    if embed.callbacks or embed.errbacks or embed.chain or embed.chord:
        request.canvas = raw
    return request


def _plain_request(
    entry: Entry,
    seal: Seal | None,
    task_id: str,
    input: bytes,
    attempt: int,
    lost: int,
    enqueued_ms: int,
    deadline_ms: int,
    ttl_ms: int,
    reply_to: str,
    tracked: bool,
    sent_ms: int,
    once: str,
    owner: str,
    given_seal: str,
) -> Request | None:
    """The request of a message that `hot_path.read_plain` has read; None if it is to be refused, with words that the
    other reader has.
    """
    times = (attempt, lost, enqueued_ms, deadline_ms, ttl_ms)
    request = Request(task_id, TIERS[entry.rank], entry.position, input, NO_PARAMETERS, *times, reply_to)
    request.tracked = tracked
    request.sent_ms = sent_ms
    if owner:
        request.owner = owner
    try:
        _one_value.decode(input)
    except _UNREADABLE:
        return None
    return request if _take_marks(request, once, given_seal, seal) else None


def read_fresh(entries: tuple[Entry, ...], now_ms: int, seal: Seal | None = None) -> list[Request | None]:
    """The requests of a claim that are plain, run for the first time, and are in time; None for each other entry.

    It reads a whole batch in one call of C, and nothing where that is not compiled: `read_message` reads the others.
    """
    if _read_fresh is None:
        return [None] * len(entries)
    requests, marked = _read_fresh(entries, now_ms, seal is not None, *_FRESH)
    for index, once, given_seal in marked:
        if not _take_marks(requests[index], once, given_seal, seal):
            requests[index] = None
    found: list[Request | None] = requests
    return found


def _take_marks(request: Request, once: str, given_seal: str, seal: Seal | None) -> bool:
    """Check a request's seal, and take what it is to others and to its payload; returns whether it is not refused."""
    try:
        if seal is not None:
            _check_seal(request, given_seal, once, seal)
        if once:
            request.question, request.keep_ms = read_mark(once)
        if is_ours(request.input):
            request.blob = _blob_of(request)
    except (UnreadableMessage, *_UNREADABLE):
        return False
    return True


def read_payload(message: bytes) -> tuple[bytes, bytes]:
    """Input and parameters of a queued message, as JSON. Raises UnreadableMessage."""
    request = read_message(Entry(1, 0, Verdict.RUN, message), default_ttl_ms=0)
    return request.input, request.parameters


def read_canvas(message: bytes) -> dict[str, Any]:
    """Celery's data of a request (`celery.app.task.Context`), from the message whose `Request.canvas` it is."""
    envelope = read_envelope(message)
    # Not msgspec: callbacks must be called also when the task's arguments are not strict JSON.
    body = json.loads(body_of(envelope))
    headers = json.loads(message).get("headers") or {}
    if isinstance(body, dict):
        return {**body, **(headers if headers_of(envelope).task else {}), "chain": None}
    args, kwargs, embed = body
    return {**headers, **embed, "args": args, "kwargs": kwargs}


def without_expiry(message: bytes) -> bytes:
    """A queued message without its expiry; ours, whose expiry is in the fast header, is returned unchanged."""
    try:
        envelope = read_envelope(message)
        headers = headers_of(envelope)
        body = b"" if headers.task else body_of(envelope)
        expires = headers.expires or (read_protocol1(body).expires if body else None)
    except (UnreadableMessage, msgspec.MsgspecError, ValueError):
        return message
    if not expires or read_fast_header(message) is not None:
        return message
    document = json.loads(message)
    if headers.task:
        document["headers"]["expires"] = None
    else:
        document["body"] = json.dumps({**json.loads(body), "expires": None})
        document["properties"] = {**(document.get("properties") or {}), "body_encoding": "utf-8"}
        document["headers"] = {
            key: value for key, value in (document.get("headers") or {}).items() if key != "compression"
        }
    # In kombu's spelling: the scripts find a header, in which they count attempts, by it.
    return json.dumps(document).encode()


def _request(
    entry: Entry,
    headers: Headers,
    properties: Properties | list[Any] | None,
    args: list[msgspec.Raw],
    keywords: Keywords,
    default_ttl_ms: int,
) -> Request:
    if headers.task != TASK_NAME:
        raise UnreadableMessage(f"task {headers.task!r} is not {TASK_NAME!r}")
    task_id = headers.id if type(headers.id) is str else str(headers.id or "")
    if not task_id:
        raise UnreadableMessage("it has no task id")
    given, parameters = _arguments(args, keywords)
    ttl_ms = 0 if headers.ignore_result else default_ttl_ms
    fast = read_times(entry.message)
    if fast is None:
        request = Request(task_id, TIERS[entry.rank], entry.position, given, parameters, result_ttl_ms=ttl_ms)
        _read_foreign(request, entry.message, headers)
    else:
        deadline_ms, _, enqueued_ms, attempt, lost, tracked, ttl_ms, *_ = fast
        times = (attempt + 1, lost, enqueued_ms, deadline_ms, ttl_ms)
        request = Request(task_id, TIERS[entry.rank], entry.position, given, parameters, *times)
        request.tracked = tracked
    if type(properties) is Properties and properties.reply_to:
        request.reply_to = properties.reply_to
    # Anybody can write a message, and a number of any length into it.
    request.sent_ms = headers.bunch_sent if 0 <= headers.bunch_sent < _LATEST_MS else 0
    if headers.bunch_owner:
        request.owner = headers.bunch_owner
    if headers.traceparent:
        request.traceparent = _text_of(headers.traceparent, valid)
    if headers.tracestate:
        request.tracestate = _text_of(headers.tracestate, valid_state)
    if headers.bunch_client:
        request.client_id = _text_of(headers.bunch_client, valid_client_id)
    if isinstance(headers.request_id, str):
        request.request_id = headers.request_id
    return request


def _arguments(args: list[msgspec.Raw], keywords: Keywords) -> tuple[bytes, bytes]:
    """Input and parameters of `send_task("bunch.infer", [input], {"parameters": …})`; a second positional argument is
    the parameters too.
    """
    given, parameters = keywords.input, keywords.parameters
    if args:
        twice = given is not msgspec.UNSET or (len(args) > 1 and parameters is not msgspec.UNSET)
        if twice or len(args) > 2:
            given = msgspec.UNSET
        else:
            given = args[0]
            if len(args) > 1:
                parameters = args[1]
    if given is msgspec.UNSET:
        raise UnreadableMessage("bunch.infer takes one input and optional parameters")
    options = NO_PARAMETERS if parameters is msgspec.UNSET else bytes(parameters)
    return bytes(given), NO_PARAMETERS if options == b"null" else options


def _text_of(header: Any, checked: Callable[[str], str]) -> str:
    """The text of an optional header; an invalid one is ignored, as it is no reason to refuse a request."""
    return checked(header) if isinstance(header, str) else ""


def _blob_of(request: Request) -> BlobRef | None:
    """The blob in the place of the input. Raises ValueError, if the message may not have that one."""
    blob = read_reference(request.input)
    if blob is not None and request.foreign and blob.near is True:
        raise NotAReferenceError("its $blob names the memory of a frontend")
    if blob is not None and not (blob.id.startswith(CLIENT_PREFIX) if request.foreign else blob.id == request.id):
        raise NotAReferenceError(f"its $blob names the payload of another request, {blob.id}")
    return blob


def _check_seal(request: Request, given: str, once: str, seal: Seal) -> None:
    """Refuse a message that names an owner, a shared answer or a reply address without a frontend's seal."""
    of = (request.id, request.owner, once, request.reply_to, request.parameters, request.input)
    request.sealed = bool(given) and not request.foreign and seal.fits(given, *of)
    if request.sealed:
        return
    if given or request.owner or once or not request.foreign:
        raise UnreadableMessage("it has headers that only a frontend may set, and no seal under BUNCH_MESSAGE_SECRET")
    if request.reply_to.startswith(REPLY_PREFIX):
        request.reply_to = ""


def _read_foreign(request: Request, raw: bytes, headers: Headers) -> None:
    """Read what a message of a plain Celery client has in other places than ours."""
    request.foreign = True
    request.input, request.parameters = marked(request.input), marked(request.parameters)
    counted = _COUNTED.search(raw)
    request.lost = int(counted[1]) if counted else 0
    request.attempt = request.lost + 1
    request.deadline_ms = _epoch_ms(headers.expires)
    request.eta_ms = _epoch_ms(headers.eta)


def _epoch_ms(expires: str | float | None) -> int:
    """Parse Celery's `expires` or `eta`: ISO 8601, in UTC if it names no zone, or epoch seconds."""
    if not expires:
        return 0
    if isinstance(expires, (int, float)):
        return int(expires * 1000)
    try:
        moment = datetime.fromisoformat(expires)
    except ValueError as error:
        raise ValueError(f"expires or eta {expires!r}: {error}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)

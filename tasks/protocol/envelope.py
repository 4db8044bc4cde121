"""Celery's two message protocols in kombu's envelope: their fields, without kombu's object layers."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from batching.ports import UnreadableMessage
from tasks.protocol.compression import decompress

MOST_BYTES = 64 * 1024 * 1024
"""The limit of a decompressed body where no setting is at hand: for messages that a worker has read or refused."""

_JSON = frozenset({"application/json", None})
_BRACES = frozenset({"{", b"{"})


class Embed(msgspec.Struct):
    callbacks: list[Any] | None = None
    errbacks: list[Any] | None = None
    chain: list[Any] | None = None
    chord: Any = None


class Headers(msgspec.Struct):
    task: str | None = ""
    id: str | int | None = ""
    eta: str | float | None = None
    expires: str | float | None = None
    ignore_result: bool | None = False
    bunch_sent: int = 0
    bunch_owner: str = ""
    bunch_client: Any = None
    bunch_once: str = ""
    bunch_seal: str = ""
    compression: str | None = None
    traceparent: Any = None
    tracestate: Any = None
    request_id: Any = None


class Properties(msgspec.Struct):
    reply_to: str | None = None
    body_encoding: str | None = None


_NO_HEADERS = Headers()


class Envelope(msgspec.Struct):
    """Clients in other languages omit an empty field, send null, or send `[]` for an empty table (PHP). Kombu takes all
    three for empty.
    """

    body: str
    headers: Headers | list[Any] | None = None
    properties: Properties | list[Any] | None = None
    content_type: str | None = msgspec.field(name="content-type", default="application/json")


class Keywords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Protocol1(msgspec.Struct):
    """The body of Celery's protocol 1, which holds the task's headers (Celery 3, other languages).

    If there are headers of protocol 2 as well, those take precedence (`celery.worker.strategy.hybrid_to_proto2`).
    """

    task: str | None = ""
    id: str | int | None = ""
    args: list[msgspec.Raw] = []
    kwargs: Keywords = Keywords()
    eta: str | float | None = None
    expires: str | float | None = None
    callbacks: list[Any] | None = None
    errbacks: list[Any] | None = None
    chord: Any = None


read_envelope = msgspec.json.Decoder(Envelope).decode
read_protocol1 = msgspec.json.Decoder(Protocol1).decode
_read_protocol2 = msgspec.json.Decoder(tuple[list[msgspec.Raw], Keywords, Embed]).decode


def headers_of(envelope: Envelope) -> Headers:
    """The headers; empty ones where a client sent none."""
    return envelope.headers if isinstance(envelope.headers, Headers) else _NO_HEADERS


def body_of(envelope: Envelope, most_bytes: int = MOST_BYTES) -> bytes | str:
    """The decoded and decompressed body. Raises UnreadableMessage, ValueError."""
    headers, properties = envelope.headers, envelope.properties
    if envelope.content_type not in _JSON:
        raise UnreadableMessage(f"content type {envelope.content_type!r}; only JSON is accepted")
    compression = headers.compression if type(headers) is Headers else None
    if not compression and not (type(properties) is Properties and properties.body_encoding == "base64"):
        return envelope.body
    body = base64.b64decode(envelope.body, validate=True)
    return decompress(body, compression, most_bytes) if compression else body


def parts_of(envelope: Envelope, body: bytes | str) -> tuple[Headers, list[msgspec.Raw], Keywords, Embed]:
    """Headers, arguments and Celery's own data, in whichever protocol. Raises msgspec.MsgspecError."""
    headers = headers_of(envelope)
    if headers.task and body[:1] not in _BRACES:
        return headers, *_read_protocol2(body)
    old = read_protocol1(body)
    merged = Headers(
        headers.task or old.task,
        headers.id or old.id,
        headers.eta or old.eta,
        headers.expires or old.expires,
        headers.ignore_result,
        traceparent=headers.traceparent,
        tracestate=headers.tracestate,
        request_id=headers.request_id,
    )
    return merged, old.args, old.kwargs, Embed(old.callbacks, old.errbacks, None, old.chord)

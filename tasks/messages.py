"""Task messages: Celery protocol 2 in kombu's envelope, written and read without kombu's object layers.

Written: one template, four splices (id, expiry, reply address, body). Any Celery worker can read it.
Read: ours and any Celery client's (protocol 2, JSON, base64 or UTF-8 body). What cannot be a task raises
`batching.ports.UnreadableMessage`.
"""

from __future__ import annotations

import base64
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from batching.ports import UnreadableMessage
from batching.request import Request
from batching.stamp import read_stamp
from batching.store import Entry
from config.keys import TASK_NAME
from config.tiers import TIERS

_encode = msgspec.json.Encoder().encode
_ARGSREPR_BYTES = 200
_ORIGIN = f"bunch{os.getpid()}@{socket.gethostname()}"
NO_PARAMETERS = b"{}"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request on its way to a queue.

    `input` and `parameters` are JSON bytes; times are milliseconds from now, since only Redis knows what time it is.
    """

    task_id: str
    model: str
    queue: str
    input: bytes
    parameters: bytes
    deadline_ms: int
    queue_limit_ms: int
    result_ttl_ms: int
    tracked: bool = True
    request_key: str = ""


class MessageWriter:
    """Writes the messages of one frontend process; `reply_to` is the channel that it listens on."""

    def __init__(self, reply_to: str) -> None:
        self._reply_to = _encode(reply_to).decode()

    def rest(self, out: Outgoing, now_epoch_s: float) -> bytes:
        """The message from the tracked mark of its stamp on; the submit script puts the stamp's head in front."""
        task_id = out.task_id
        text = out.input.decode()
        body = (
            f'[[{text}],{{"parameters":{out.parameters.decode()}}},'
            '{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]'
        )
        shown = _encode(f"({text})" if len(text) <= _ARGSREPR_BYTES else f"({text[:_ARGSREPR_BYTES]}…)").decode()
        # Rounded up to whole seconds: the stamp is what Bunch goes by, this header is for other Celery workers.
        expires = _iso_second(int(now_epoch_s + out.deadline_ms / 1000) + 1)
        return (
            f'{out.tracked:d};{out.result_ttl_ms:09d};{task_id}","lang":"py","task":"{TASK_NAME}","id":"{task_id}",'
            f'"eta":null,"expires":"{expires}","group":null,"retries":0,"timelimit":[null,null],'
            f'"root_id":"{task_id}","parent_id":null,"argsrepr":{shown},"kwargsrepr":"{{}}","origin":"{_ORIGIN}",'
            f'"ignore_result":false}},"body":{_encode(body).decode()},"content-type":"application/json","content-encoding":"utf-8",'
            f'"properties":{{"correlation_id":"{task_id}","reply_to":{self._reply_to},"delivery_mode":2,'
            f'"delivery_info":{{"exchange":"","routing_key":"{out.queue}"}},"priority":0,"body_encoding":"utf-8",'
            f'"delivery_tag":"{task_id}"}}}}'
        ).encode()


@lru_cache(maxsize=64)
def _iso_second(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat()


class _Headers(msgspec.Struct):
    task: str
    id: str
    expires: str | float | None = None
    ignore_result: bool | None = False
    bunch_attempt: int = 0
    compression: str | None = None


class _Properties(msgspec.Struct):
    reply_to: str | None = None
    body_encoding: str | None = None


class _Envelope(msgspec.Struct):
    body: str
    headers: _Headers
    properties: _Properties
    content_type: str = msgspec.field(name="content-type", default="application/json")


class _Embed(msgspec.Struct):
    callbacks: list[Any] | None = None
    errbacks: list[Any] | None = None
    chain: list[Any] | None = None
    chord: Any = None


class _Keywords(msgspec.Struct, forbid_unknown_fields=True):
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_envelope = msgspec.json.Decoder(_Envelope)
_body = msgspec.json.Decoder(tuple[list[msgspec.Raw], _Keywords, _Embed])


def read_message(entry: Entry, default_ttl_ms: int) -> Request:
    """Decode one claimed message.

    Args:
        default_ttl_ms: how long to keep the result of a message that does not say.

    Raises:
        UnreadableMessage: with what is wrong, for the log.
    """
    raw = entry.message
    try:
        envelope = _envelope.decode(raw)
        headers, properties = envelope.headers, envelope.properties
        if headers.task != TASK_NAME:
            raise UnreadableMessage(f"task {headers.task!r} is not {TASK_NAME!r}")
        if envelope.content_type != "application/json":
            raise UnreadableMessage(f"content type {envelope.content_type!r}; only JSON is read")
        body: str | bytes = envelope.body
        if properties.body_encoding == "base64":
            body = base64.b64decode(body, validate=True)
        args, kwargs, _ = _body.decode(body)
    except UnreadableMessage:
        raise
    except (msgspec.MsgspecError, ValueError) as error:
        raise UnreadableMessage(str(error)) from error
    given = args[0] if args else kwargs.input
    if given is msgspec.UNSET or len(args) > 1:
        raise UnreadableMessage("bunch.infer takes exactly one input")
    parameters = NO_PARAMETERS if kwargs.parameters is msgspec.UNSET else bytes(kwargs.parameters)
    request = Request(
        id=headers.id,
        tier=TIERS[entry.rank],
        position=entry.position,
        input=bytes(given),
        parameters=NO_PARAMETERS if parameters == b"null" else parameters,
        attempt=headers.bunch_attempt + 1,
        result_ttl_ms=default_ttl_ms,
        reply_to=properties.reply_to or "",
    )
    stamp = read_stamp(raw)
    if stamp is None:
        request.deadline_ms = _epoch_ms(headers.expires)
        request.lost = headers.bunch_attempt
    else:
        request.attempt = stamp.attempt + 1
        request.lost = stamp.lost
        request.enqueued_ms = stamp.enqueued_ms
        request.deadline_ms = stamp.deadline_ms
        request.result_ttl_ms = stamp.result_ttl_ms
    return request


def _epoch_ms(expires: str | float | None) -> int:
    """Celery's `expires` header: ISO 8601, in UTC when it names no zone."""
    if not expires:
        return 0
    if isinstance(expires, (int, float)):
        return int(expires * 1000)
    try:
        moment = datetime.fromisoformat(expires)
    except ValueError as error:
        raise UnreadableMessage(f"expires {expires!r}: {error}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)

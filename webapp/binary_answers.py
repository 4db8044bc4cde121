"""Answers that are bytes: an output as the body, by the caller's `Accept`.

    Accept ──wish_of──▶ Wish ──asking──▶ parameters, where the executor must give the output another form
                         └──binary_answer──▶ the body, its media type, and the metadata as a header; None: JSON

A wish is no condition: an output that is not what is wished for is answered in JSON, whose Content-Type says so.
"""

from __future__ import annotations

import binascii
import json
from typing import Any

import msgspec

from batching.request import OWN_METADATA
from tasks.protocol.binary import CONTENT_TYPE, OUTPUT, OUTPUT_TYPE
from tasks.protocol.results import BytesReply, Reply
from webapp.media_types import BYTES, NO_WISH, Wish, media_type_of, wish_of
from webapp.request import HttpRequest, HttpResponse

METADATA = "Bunch-Metadata"
# Some clients and proxies refuse longer fields.
_MOST_HEADER_CHARS = 6_000
# A model may name any media type: an HTML page, or a picture with scripts, must not act as a page of this server.
_HARMLESS = ("Content-Security-Policy", "sandbox; default-src 'none'")


class _About(msgspec.Struct):
    output_type: str = ""
    content_type: Any = ""


_about = msgspec.json.Decoder(_About)
_members = msgspec.json.Decoder(dict[str, Any])


def wish_in(call: HttpRequest) -> Wish:
    """The wish of a caller."""
    accept = call.header("HTTP_ACCEPT")
    return NO_WISH if accept is None else wish_of(accept)


def asking(call: HttpRequest, parameters: dict[str, Any] | None, wish: Wish) -> dict[str, Any] | None:
    """The parameters of a request, with the form that its output shall have."""
    if not wish.form:
        return parameters
    # The body's own spelling of them lacks it.
    call.large_body = b""
    return {**(parameters or {}), OUTPUT: wish.form}


def binary_answer(
    call: HttpRequest, wish: Wish, reply: Reply, about: dict[str, Any], headers: tuple[tuple[str, str], ...] = ()
) -> HttpResponse | None:
    """The answer with an output as its body; None if that is no bytes, or not of a type that is wished for. `about` is
    told of the request besides its metadata.
    """
    body = bytes_in(reply) if wish.types else None
    if body is None:
        return None
    told = _about.decode(reply.bunch).content_type
    content_type = media_type_of(told if isinstance(told, str) else "") or BYTES
    if not wish.takes(content_type):
        return None
    head = (*headers, (METADATA, _header(about, reply)), ("Vary", "Accept"), ("Cache-Control", "no-store"), _HARMLESS)
    return HttpResponse(200, body, call.request_id, content_type, head)


def bytes_in(reply: Reply) -> bytes | None:
    """The output that is bytes; None for any other."""
    if isinstance(reply, BytesReply):
        return reply.data
    if OUTPUT_TYPE.encode() not in bytes(reply.bunch) or _about.decode(reply.bunch).output_type != "bytes":
        return None
    try:
        return binascii.a2b_base64(bytes(reply.result)[1:-1], strict_mode=True)
    except ValueError:
        return None


def _header(about: dict[str, Any], reply: Reply) -> str:
    """The metadata of an answer, and what else it has besides the output. ASCII, since a header has nothing else."""
    metadata = _members.decode(reply.bunch)
    # Of equal names that of the answer counts: a model may call its own whatever it likes.
    text = json.dumps({**about, **metadata, **about}, separators=(",", ":"))
    if len(text) <= _MOST_HEADER_CHARS:
        return text
    # What a model adds may be longer than a header, also what it calls a media type; ours never is.
    known = {name: value for name, value in metadata.items() if name in OWN_METADATA}
    told = metadata.get(CONTENT_TYPE)
    if isinstance(told, str) and (content_type := media_type_of(told)):
        known[CONTENT_TYPE] = content_type
    return json.dumps({**about, **known, **about}, separators=(",", ":"))

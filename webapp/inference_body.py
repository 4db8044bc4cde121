"""Reads the body of `POST /v1/inference`, in any of its forms.

application/json ───── {"input": …, …} ──────────────────────────────────┐
image/png, npy, … ──── the body is the input, the rest is the query ─────┼▶ InferenceBody; `input` is a `Binary`
multipart/form-data ── a part `input`, the rest in the part `request`, ──┘  where it is bytes
                       in a part for each member, or in the query
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from webapp.body_budget import LARGE_BYTES
from webapp.cors import from_another_site
from webapp.encoded import Binary
from webapp.errors import ApiError
from webapp.media_types import BYTES, MULTIPART, is_binary, media_type_of
from webapp.parsing import InferenceBody, converted, decoded, milliseconds, read_body, require_plain
from webapp.request import JSON, HttpRequest
from webapp.services import Services

# RFC 2046 5.1.1; what is longer, or has other characters, is no boundary that a client makes.
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,199}[0-9A-Za-z'()+_,./:=?-]")
_TRANSFER_ENCODINGS = frozenset({"", "7bit", "8bit", "binary"})
_INPUT, _REQUEST = "input", "request"
# The members that may be in the query of a body that is no JSON.
_IN_QUERY = ("model", "parameters", "timeout_ms", "client_id")


class _Parameters(msgspec.Struct):
    parameters: dict[str, Any]


class _Input(msgspec.Struct):
    input: Any


class _Rest(msgspec.Struct):
    """The part `request`: an `InferenceBody` without its input."""

    model: Any = None
    parameters: Any = None
    timeout_ms: Any = None
    client_id: Any = None
    callback_url: Any = None


_inference = msgspec.json.Decoder(InferenceBody)
_rest = msgspec.json.Decoder(_Rest)
_parameters = msgspec.json.Decoder(_Parameters)
_json_input = msgspec.json.Decoder(_Input)
_any_object = msgspec.json.Decoder(dict[str, Any])
_any = msgspec.json.Decoder()


def read_inference(services: Services, call: HttpRequest) -> InferenceBody:
    """Read and check a body. A large one begins its call's turn.

    Raises:
        ServiceOverloaded, CallerGone: as `read_body`.
        InvalidInput: of the query.
        ApiError: UNSUPPORTED_MEDIA_TYPE, FORBIDDEN, INVALID_HEADER, INVALID_JSON, or INVALID_INPUT naming the field.
    """
    media_type = media_type_of(call.header("CONTENT_TYPE"))
    if not is_binary(media_type) and media_type != MULTIPART:
        if media_type != JSON and services.binary:
            # curl says application/x-www-form-urlencoded, unless it is told.
            raise ApiError(
                "UNSUPPORTED_MEDIA_TYPE",
                "send Content-Type: application/json, in UTF-8; or with an input that is bytes their own type, such as "
                f"image/png or {BYTES}",
            )
        return read_body(call, _inference, services.large)
    require_plain(call)
    if media_type == MULTIPART and from_another_site(call, services.settings.origins):
        # Browsers send such a body without asking first.
        raise ApiError("FORBIDDEN", "pages of other sites may call once BUNCH_CORS_ORIGINS names their origin")
    raw = call.body()
    # Bytes that go beside the queue are hashed in a thread, and neither parsed nor encoded: nobody waits for that.
    if len(raw) >= LARGE_BYTES and (media_type == MULTIPART or not services.settings.lies_beside(len(raw))):
        call.turn = services.large.turn(call.key_id, call.hung_up)
    given = {name: _READ[name](text) for name in _IN_QUERY if (text := call.query(name)) is not None}
    if media_type == MULTIPART:
        return _of_parts(call, raw, given, services.settings.max_body_bytes)
    return converted({_INPUT: Binary(raw, media_type), **given}, InferenceBody)


def require_welcome(services: Services, call: HttpRequest) -> None:
    """Check the head of a body that is an input, before the body is received. Raises ApiError, InvalidInput."""
    media_type = media_type_of(call.header("CONTENT_TYPE"))
    if not is_binary(media_type):
        return
    # A name that leads to one of several models is looked at with the body.
    model = services.versions.undivided(call.query("model"))
    if model is not None:
        services.binary.require_taken(model, media_type)


def _of_parts(call: HttpRequest, raw: bytes, in_query: dict[str, Any], most_json_bytes: int) -> InferenceBody:
    given = in_query
    for part, data in _parts(call, raw):
        name = part.name or ""
        if name == _INPUT:
            members = {name: _input_of(part, data, most_json_bytes)}
        elif len(data) > most_json_bytes:
            raise ApiError("PAYLOAD_TOO_LARGE", f"{name}: a part besides the input has at most {most_json_bytes} bytes")
        elif name == _REQUEST:
            found = decoded(data, _rest)
            members = {key: value for key, value in msgspec.structs.asdict(found).items() if value is not None}
        elif name in _READ:
            members = {name: _READ[name](_text(name, data))}
        else:
            raise ApiError(
                "INVALID_INPUT", f"there is no part {name[:64]!r}; the parts are input, request, or {', '.join(_READ)}"
            )
        twice = given.keys() & members.keys()
        if twice:
            raise ApiError("INVALID_INPUT", f"{min(twice)}: it is there twice")
        given |= members
    return converted(given, InferenceBody)


def _parts(call: HttpRequest, raw: bytes) -> Iterator[tuple[MultipartSegment, bytes]]:
    """The parts of a body, each with its data. Raises ApiError."""
    boundary = parse_options_header(call.header("CONTENT_TYPE") or "")[1].get("boundary", "")
    if not _BOUNDARY.fullmatch(boundary):
        raise ApiError("INVALID_HEADER", f"Content-Type: {MULTIPART} must have a boundary")
    # One more than there are, so that each can be named as superfluous.
    parser = PushMultipartParser(boundary, max_segment_count=len(_READ) + 3, strict=True)
    try:
        pieces: list[bytes] = []
        part: MultipartSegment | None = None
        for event in parser.parse(raw):
            if isinstance(event, MultipartSegment):
                part, pieces = event, []
            elif event is not None:
                pieces.append(event)
            elif part is not None:
                yield part, pieces[0] if len(pieces) == 1 else b"".join(pieces)
        parser.close()
    except MultipartError as error:
        raise ApiError("INVALID_INPUT", f"the body is not {MULTIPART}: {error}") from None


def _input_of(part: MultipartSegment, data: bytes, most_json_bytes: int) -> Any:
    encoding = part.header("Content-Transfer-Encoding", "")
    if encoding.strip().lower() not in _TRANSFER_ENCODINGS:
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", "input: Content-Transfer-Encoding is not supported; send plain bytes")
    media_type = media_type_of(part.content_type)
    if media_type != JSON:
        return Binary(data, media_type or BYTES)
    if len(data) > most_json_bytes:
        raise ApiError("PAYLOAD_TOO_LARGE", f"input: more than {most_json_bytes} bytes of JSON")
    return _framed(_INPUT, data, _any, _json_input).input


def _framed(name: str, value: bytes, alone: msgspec.json.Decoder[Any], whole: msgspec.json.Decoder[Any]) -> Any:
    """A member of a body that has come by itself, by the rules for bodies. Raises ApiError."""
    try:
        # By itself first: with the frame around it, further members would pass.
        alone.decode(value)
    except msgspec.ValidationError as error:
        raise ApiError("INVALID_INPUT", f"{name}: {error}") from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ApiError("INVALID_JSON", f"{name}: {error}") from None
    return decoded(b'{"%b":%b}' % (name.encode(), value), whole)


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ApiError("INVALID_INPUT", f"{name}: it is not UTF-8: {error}") from None


# How each member is read from a text: in the query, or in a part of its own.
_READ: dict[str, Callable[[str], Any]] = {
    "model": str,
    "parameters": lambda text: _framed("parameters", text.encode(), _any_object, _parameters).parameters,
    "timeout_ms": lambda text: milliseconds(text, "timeout_ms", "INVALID_INPUT", above_0=True),
    "client_id": str,
    "callback_url": str,
}

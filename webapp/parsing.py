"""Parses an HTTP request into a validated inference request; every refusal names the mistake and the right form."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import gevent
import msgspec

from config.settings import Settings
from tasks.client.submission import NO_PARAMETERS, Submission
from tasks.protocol.caller import CLIENT_ID, MAX_CLIENT_ID
from tasks.protocol.json_structure import MAX_DEPTH, MAX_PARTS, has_doubled_names, too_deep, too_many_parts
from webapp.body_budget import LARGE_BYTES, BodyBudget
from webapp.encoded import Binary, Encoded, with_content_type
from webapp.errors import ApiError
from webapp.request import HttpRequest

Milliseconds = Annotated[int, msgspec.Meta(gt=0)] | Annotated[float, msgspec.Meta(gt=0)]

_encode = msgspec.json.Encoder().encode
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_IDEMPOTENCY_KEY = re.compile(r"[ -~]{1,255}")
_FRESH = frozenset({"no-cache", "no-store"})
# Normalised, without separators. The second is IANA's alias; an empty charset counts as a missing one.
_UTF_8 = frozenset({"utf8", "csutf8", ""})
_NO_SEPARATORS = {ord(each): None for each in "-_ "}
_LONGEST_MEDIA_TYPE = 1024
# Content codings that do not change a body.
_PLAIN = frozenset({"", "identity"})


ClientId = Annotated[str, msgspec.Meta(max_length=MAX_CLIENT_ID, pattern=CLIENT_ID)]


class InferenceBody(msgspec.Struct):
    """The body of `POST /v1/inference`."""

    input: Any
    model: str | None = None
    parameters: dict[str, Any] | None = None
    timeout_ms: Milliseconds | None = None
    client_id: ClientId | None = None
    callback_url: str | None = None


class BulkBody(msgspec.Struct):
    """The body of `POST /v1/inference/bulk`."""

    inputs: Annotated[list[Any], msgspec.Meta(min_length=1)]
    model: str | None = None
    parameters: dict[str, Any] | None = None
    timeout_ms: Milliseconds | None = None
    client_id: ClientId | None = None


class PredictBody(msgspec.Struct):
    """The body of `POST /v1/predict`."""

    input_data: Any
    model_id: str | None = None


class SimpleBody(msgspec.Struct):
    """The body of `POST /api/inference`."""

    input: str


class _AsWritten(msgspec.Struct):
    """The members of any of these bodies that a model gets, in the caller's own spelling."""

    input: msgspec.Raw = msgspec.Raw(b"null")
    input_data: msgspec.Raw = msgspec.Raw(b"null")
    inputs: msgspec.Raw = msgspec.Raw(b"[]")
    parameters: msgspec.Raw = msgspec.Raw(b"null")


_as_written = msgspec.json.Decoder(_AsWritten)
_each_as_written = msgspec.json.Decoder(list[msgspec.Raw])

Body = TypeVar("Body", bound=msgspec.Struct)


def read_body(call: HttpRequest, decoder: msgspec.json.Decoder[Body], large: BodyBudget) -> Body:
    """Read the body as `decoder`'s type. A large one begins its call's turn.

    Raises:
        ServiceOverloaded: too many large bodies wait for their turn.
        CallerGone: the caller has disconnected meanwhile.
        ApiError: UNSUPPORTED_MEDIA_TYPE, INVALID_JSON, or INVALID_INPUT naming the field.
    """
    _require_json(call)
    raw = call.body()
    if len(raw) >= LARGE_BYTES:
        call.large_body = raw
        call.turn = large.turn(call.key_id, call.hung_up)
    return decoded(raw, decoder)


def decoded(raw: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    """Decode JSON as `decoder`'s type, whose nested types have no None by default. Raises ApiError."""
    if too_many_parts(raw):
        raise ApiError("INVALID_JSON", f"the body has more than {MAX_PARTS:,} names, arrays and objects; send fewer")
    try:
        if not raw.isascii():
            # The decoder skips unknown fields without checking that they are UTF-8.
            raw.decode()
        body = decoder.decode(raw)
        _let_others_run(raw)
        if too_deep(raw):
            raise _too_deep()
        _let_others_run(raw)
        if has_doubled_names(raw, body):
            raise _doubled_name(raw)
    except msgspec.ValidationError as error:
        raise ApiError("INVALID_INPUT", _in_words(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("INVALID_JSON", f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep() from error
    return body


def converted(members: dict[str, Any], kind: type[Body]) -> Body:
    """A body whose members come from elsewhere, checked as if it had been JSON. Raises ApiError INVALID_INPUT."""
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as error:
        raise ApiError("INVALID_INPUT", _in_words(str(error))) from error


def _let_others_run(raw: bytes) -> None:
    if len(raw) >= LARGE_BYTES:
        gevent.sleep(0)


def is_plain_json(call: HttpRequest) -> bool:
    """True if the body is said to be JSON in UTF-8, and not compressed."""
    try:
        _require_json(call)
    except ApiError:
        return False
    return True


def _require_json(call: HttpRequest) -> None:
    content_type = call.header("CONTENT_TYPE")
    if content_type != "application/json" and not _is_json(content_type or ""):
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", "send Content-Type: application/json, in UTF-8")
    require_plain(call)


def require_plain(call: HttpRequest) -> None:
    """Raise ApiError UNSUPPORTED_MEDIA_TYPE for a compressed body."""
    encoding = call.header("HTTP_CONTENT_ENCODING")
    if encoding is not None and encoding.strip().lower() not in _PLAIN:
        raise ApiError(
            "UNSUPPORTED_MEDIA_TYPE", f"Content-Encoding {encoding[:64]!r} is not supported; send the body uncompressed"
        )


@lru_cache(maxsize=64)
def _is_json(content_type: str) -> bool:
    """True if the content type is JSON, and its charset, if any, a spelling of UTF-8."""
    if len(content_type) > _LONGEST_MEDIA_TYPE:
        return False
    media_type, *parameters = content_type.lower().split(";")
    charsets = [
        value.strip(" \t\"'").translate(_NO_SEPARATORS)
        for name, _, value in (each.partition("=") for each in parameters)
        if name.strip() == "charset"
    ]
    return media_type.strip() == "application/json" and all(each in _UTF_8 for each in charsets)


def _too_deep() -> ApiError:
    return ApiError("INVALID_JSON", f"the body is nested too deeply; at most {MAX_DEPTH} levels are allowed")


def _doubled_name(raw: bytes) -> ApiError:
    """The refusal of an object with two members of one name: here the last would win, elsewhere the first, for example
    in a proxy that checks which model a caller may use.
    """
    # Only for a better message, at several times the cost of the check.
    if len(raw) < LARGE_BYTES:
        try:
            _names_once.decode(raw.decode())
        except _DoubledName as found:
            return ApiError("INVALID_JSON", f"the body has {found.args[0][:64]!r} twice in one object")
    return ApiError("INVALID_JSON", "the body has a name twice in one object")


class _DoubledName(Exception):
    """`_DoubledName(name)`."""


def _object_of(members: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in members:
        if name in seen:
            raise _DoubledName(name)
        seen.add(name)


# Only the names matter: numbers are not converted.
_names_once = json.JSONDecoder(object_pairs_hook=_object_of, parse_float=len, parse_int=len)


def _in_words(text: str) -> str:
    """Msgspec's message `… - at `$.field`` with the field in front."""
    problem, _, path = text.partition(" - at ")
    field = path.strip("`").removeprefix("$").lstrip(".")
    return f"{field}: {problem}" if field else problem


def timeout_s(settings: Settings, call: HttpRequest, asked_ms: float | None) -> float:
    """The caller's deadline in seconds from now, above 0: body over header, never above the server's own limit."""
    header = call.header("HTTP_X_TIMEOUT_MS")
    if header is not None:
        # With no time at all nothing can be answered, and only the caller can change that.
        header_ms = milliseconds(header, "X-Timeout-Ms", "INVALID_HEADER", above_0=True)
        asked_ms = header_ms if asked_ms is None else asked_ms
    if asked_ms is None:
        return settings.request_timeout_s
    # Compared before the division: an integer of 400 digits has no float.
    return min(asked_ms, settings.request_timeout_ms) / 1000


def submission_of(
    settings: Settings,
    call: HttpRequest,
    model: str,
    input: Encoded,
    parameters: dict[str, Any] | None = None,
    timeout_ms: float | None = None,
    *,
    waits: bool = True,
    takes_bytes: bool = False,
) -> Submission:
    """Make a submission from an identified caller's headers and body; `timeout_ms` is the body's.

    Raises:
        ApiError: INVALID_HEADER.
    """
    key = idempotency_key(call)
    options = input_json(call, parameters, "parameters") if parameters else NO_PARAMETERS
    binary = False
    if isinstance(input, Binary):
        binary = True
        input, content_type = input
        options = with_content_type(options, content_type)
    return Submission(
        model,
        call.caller,
        input,
        timeout_s(settings, call, timeout_ms),
        options,
        waits,
        call.caller_request_id,
        call.client_id,
        call.traceparent,
        call.tracestate,
        key,
        fresh=wants_fresh(call),
        hung_up=call.hung_up,
        asked=call.asked_model if key else "",
        binary=binary,
        takes_bytes=takes_bytes,
    )


def milliseconds(text: str, name: str, code: str, *, above_0: bool = False) -> float:
    """Parse a number of milliseconds in JSON's form, not below 0, or above it; otherwise raise an error with `code`."""
    if _NUMBER.fullmatch(text):
        found = float(text)
        if found or not above_0:
            return found
    raise ApiError(code, f"{name} must be a number of milliseconds, {'above 0' if above_0 else '0 or more'}")


def flag(text: str | None, name: str) -> bool:
    """Parse a query parameter that is `true` or `false`; a missing one is false."""
    if text in {None, "false", "0"}:
        return False
    if text in {"true", "1", ""}:
        return True
    raise ApiError("INVALID_INPUT", f"{name} must be true or false")


def idempotency_key(call: HttpRequest) -> str:
    """The caller's Idempotency-Key, or an empty string."""
    key = call.header("HTTP_IDEMPOTENCY_KEY")
    if key is None:
        return ""
    if not _IDEMPOTENCY_KEY.fullmatch(key):
        raise ApiError("INVALID_HEADER", "Idempotency-Key must be 1 to 255 printable ASCII characters")
    return key


def wants_fresh(call: HttpRequest) -> bool:
    """True if the answer must be computed for this caller, not reused."""
    control = call.header("HTTP_CACHE_CONTROL")
    return control is not None and any(each.strip().lower() in _FRESH for each in control.split(","))


def input_json(call: HttpRequest, value: object, name: str = "input") -> bytes:
    """Encode a validated member of the call's body as JSON: one canonical spelling, whatever the caller's white space.

    In a large body the caller's spelling stays where it is shorter: `1e15` is canonical with 18 characters, and queue,
    worker and executor would work on four times the bytes.
    """
    encoded = _encode(value)
    return (
        min(encoded, bytes(getattr(_as_written.decode(call.large_body), name)), key=len) if call.large_body else encoded
    )


def bulk_json(call: HttpRequest, encoded: Sequence[bytes]) -> Sequence[bytes]:
    """The inputs of a bulk call by the same rule; `encoded` has their canonical spellings."""
    if not call.large_body:
        return encoded
    written = _each_as_written.decode(_as_written.decode(call.large_body).inputs)
    return [min(each, bytes(own), key=len) for each, own in zip(encoded, written, strict=True)]


def as_json(value: object) -> bytes:
    """Encode validated input as JSON: one canonical spelling, whatever white space the caller used."""
    return _encode(value)

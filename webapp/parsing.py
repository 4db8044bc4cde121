"""From an HTTP request to a validated inference request; every refusal names what is wrong and what would be right."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import gevent
import msgspec
from msgspec.structs import replace

from config.settings import Settings
from tasks.client.dedup import call_hash
from tasks.client.submission import NO_PARAMETERS, Submission
from tasks.protocol.caller import CLIENT_ID, MAX_CLIENT_ID
from tasks.protocol.json_structure import MAX_DEPTH, MAX_PARTS, has_doubled_names, too_deep, too_many_parts
from webapp.body_budget import LARGE_BYTES, BodyBudget
from webapp.errors import ApiError
from webapp.request import HttpRequest

Milliseconds = Annotated[int, msgspec.Meta(gt=0)] | Annotated[float, msgspec.Meta(gt=0)]

_encode = msgspec.json.Encoder().encode
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_IDEMPOTENCY_KEY = re.compile(r"[ -~]{1,255}")
_FRESH = frozenset({"no-cache", "no-store"})
# Without what people put between the parts of the name. The second is IANA's alias; a charset that is left empty says
# as little as one that is left out.
_UTF_8 = frozenset({"utf8", "csutf8", ""})
_NO_SEPARATORS = {ord(each): None for each in "-_ "}
_LONGEST_MEDIA_TYPE = 1024
# Content codings that leave a body as it is.
_PLAIN = frozenset({"", "identity"})


ClientId = Annotated[str, msgspec.Meta(max_length=MAX_CLIENT_ID, pattern=CLIENT_ID)]


class InferenceBody(msgspec.Struct):
    """`POST /v1/inference`."""

    input: Any
    model: str | None = None
    parameters: dict[str, Any] | None = None
    timeout_ms: Milliseconds | None = None
    client_id: ClientId | None = None


class BulkBody(msgspec.Struct):
    """`POST /v1/inference/bulk`."""

    inputs: Annotated[list[Any], msgspec.Meta(min_length=1)]
    model: str | None = None
    parameters: dict[str, Any] | None = None
    timeout_ms: Milliseconds | None = None
    client_id: ClientId | None = None


class PredictBody(msgspec.Struct):
    """`POST /v1/predict`."""

    input_data: Any
    model_id: str | None = None


class SimpleBody(msgspec.Struct):
    """`POST /api/inference`."""

    input: str


Body = TypeVar("Body", bound=msgspec.Struct)


def read_body(call: HttpRequest, decoder: msgspec.json.Decoder[Body], large: BodyBudget) -> Body:
    """The body as `decoder`'s type.

    Raises:
        ServiceOverloaded: too many large ones wait for their turn.
        ApiError: UNSUPPORTED_MEDIA_TYPE, INVALID_JSON, or INVALID_INPUT naming the field.
    """
    _require_json(call)
    raw = call.body()
    if len(raw) < LARGE_BYTES:
        return _decoded(raw, decoder)
    with large.turn(len(raw)):
        return _decoded(raw, decoder)


def _decoded(raw: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    if too_many_parts(raw):
        raise ApiError("INVALID_JSON", f"the body has more than {MAX_PARTS:,} names, arrays and objects; send fewer")
    try:
        if not raw.isascii():
            # The decoder reads over fields that it does not know, whatever bytes stand in them.
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


def _let_others_run(raw: bytes) -> None:
    if len(raw) >= LARGE_BYTES:
        gevent.sleep(0)


def _require_json(call: HttpRequest) -> None:
    content_type = call.header("CONTENT_TYPE")
    if content_type != "application/json" and not _is_json(content_type or ""):
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", "send Content-Type: application/json, in UTF-8")
    encoding = call.header("HTTP_CONTENT_ENCODING")
    if encoding is not None and encoding.strip().lower() not in _PLAIN:
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", f"Content-Encoding {encoding[:64]!r} is not read; send it plain")


@lru_cache(maxsize=64)
def _is_json(content_type: str) -> bool:
    """JSON whose charset, if it names one, is a spelling of UTF-8."""
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
    return ApiError("INVALID_JSON", f"the body is nested too deeply; {MAX_DEPTH} levels are taken")


def _doubled_name(raw: bytes) -> ApiError:
    """The last of two members with one name would win here and the first elsewhere: in a proxy that checks the model
    which a caller may use, say.
    """
    # Only said better, at several times the cost of finding it.
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


# Only the names matter: numbers are not built.
_names_once = json.JSONDecoder(object_pairs_hook=_object_of, parse_float=len, parse_int=len)


def _in_words(text: str) -> str:
    """Msgspec's `… - at `$.field`` with the field in front."""
    problem, _, path = text.partition(" - at ")
    field = path.strip("`").removeprefix("$").lstrip(".")
    return f"{field}: {problem}" if field else problem


def model_name(settings: Settings, asked: str | None) -> str:
    name = settings.default_model if asked is None else asked
    if name not in settings.models:
        known = ", ".join(settings.models)
        raise ApiError("UNKNOWN_MODEL", f"there is no model {name[:64]!r}; there are {known}")
    return name


def timeout_s(settings: Settings, call: HttpRequest, asked_ms: float | None) -> float:
    """The caller's deadline in seconds from now, above 0: body over header, never above the server's own limit."""
    header = call.header("HTTP_X_TIMEOUT_MS")
    if header is not None:
        header_ms = milliseconds(header, "X-Timeout-Ms", "INVALID_HEADER")
        if not header_ms:
            # With no time at all nothing can be answered, and only the caller can mend that.
            raise ApiError("INVALID_HEADER", "X-Timeout-Ms must be above 0; leave it out for the server's own limit")
        asked_ms = header_ms if asked_ms is None else asked_ms
    if asked_ms is None:
        return settings.request_timeout_s
    # Compared before it is divided: an integer of 400 digits has no float.
    return min(asked_ms, settings.request_timeout_ms) / 1000


def submission_of(
    settings: Settings,
    call: HttpRequest,
    model: str,
    input: bytes,
    parameters: dict[str, Any] | None = None,
    timeout_ms: float | None = None,
    *,
    waits: bool = True,
) -> Submission:
    """What an identified caller's headers and body ask for; `input` is JSON, `timeout_ms` the body's.

    Raises:
        ApiError: INVALID_HEADER.
    """
    return Submission(
        model,
        call.caller,
        input,
        timeout_s(settings, call, timeout_ms),
        as_json(parameters) if parameters else NO_PARAMETERS,
        waits,
        call.caller_request_id,
        call.client_id,
        call.traceparent,
        call.tracestate,
        idempotency_key(call),
        fresh=wants_fresh(call),
        hung_up=call.hung_up,
    )


def one_each(whole: Submission, inputs: Sequence[bytes]) -> list[Submission]:
    """A submission for each input of a bulk call; the request id that its caller gave stays the call's own."""
    key = whole.idempotency_key
    if not key:
        return [replace(whole, input=value, request_id="") for value in inputs]
    hashed = call_hash(inputs)
    # No key of a caller's has a line feed in it.
    return [
        replace(whole, input=value, request_id="", idempotency_key=f"{key}\n{number}", call_hash=hashed)
        for number, value in enumerate(inputs)
    ]


def milliseconds(text: str, name: str, code: str) -> float:
    """A number of milliseconds as JSON writes one, not below 0; anything else is refused with `code`."""
    if _NUMBER.fullmatch(text):
        return float(text)
    raise ApiError(code, f"{name} must be a number of milliseconds, 0 or more")


def flag(text: str | None, name: str) -> bool:
    """A query parameter that is `true` or `false`; left out it is false."""
    if text in {None, "false", "0"}:
        return False
    if text in {"true", "1", ""}:
        return True
    raise ApiError("INVALID_INPUT", f"{name} must be true or false")


def idempotency_key(call: HttpRequest) -> str:
    """The caller's, or empty."""
    key = call.header("HTTP_IDEMPOTENCY_KEY")
    if key is None:
        return ""
    if not _IDEMPOTENCY_KEY.fullmatch(key):
        raise ApiError("INVALID_HEADER", "Idempotency-Key must be 1 to 255 printable ASCII characters")
    return key


def wants_fresh(call: HttpRequest) -> bool:
    """Whether it may not be answered with what was computed for somebody else."""
    control = call.header("HTTP_CACHE_CONTROL")
    return control is not None and any(each.strip().lower() in _FRESH for each in control.split(","))


def as_json(value: object) -> bytes:
    """Validated input back to JSON: one canonical spelling, whatever white space the caller used."""
    return _encode(value)

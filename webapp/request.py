"""From an HTTP request to a validated inference request; every refusal names what is wrong and what would be right."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any, TypeVar

import msgspec

from config.settings import Settings
from webapp.call import Call
from webapp.errors import ApiError

Milliseconds = Annotated[int, msgspec.Meta(gt=0)] | Annotated[float, msgspec.Meta(gt=0)]

# Whoever reads a request further on (worker, executor, the model itself) recurses for each level, on stacks of other
# depths than ours: far below the recursion limit of all of them, so that no input can be read here and not there.
MAX_DEPTH = 200

_encode = msgspec.json.Encoder().encode
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_IDEMPOTENCY_KEY = re.compile(r"[ -~]{1,255}")
_FRESH = frozenset({"no-cache", "no-store"})
# Without what people put between the parts of the name. The second is IANA's alias; a charset that is left empty says
# as little as one that is left out.
_UTF_8 = frozenset({"utf8", "csutf8", ""})
_NO_SEPARATORS = {ord(each): None for each in "-_ "}
# Content codings that leave a body as it is.
_PLAIN = frozenset({"", "identity"})
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = b"[{]}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
# One level deeper, one level back, as signed bytes.
_STEPS = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")


class InferenceBody(msgspec.Struct):
    """`POST /v1/inference`."""

    input: Any
    model: str | None = None
    parameters: dict[str, Any] | None = None
    timeout_ms: Milliseconds | None = None
    client_id: str | None = None


class BulkBody(msgspec.Struct):
    """`POST /v1/inference/bulk`."""

    inputs: Annotated[list[Any], msgspec.Meta(min_length=1)]
    model: str | None = None
    parameters: dict[str, Any] | None = None
    timeout_ms: Milliseconds | None = None
    client_id: str | None = None


class PredictBody(msgspec.Struct):
    """`POST /v1/predict`."""

    input_data: Any
    model_id: str | None = None


class SimpleBody(msgspec.Struct):
    """`POST /api/inference`."""

    input: str


Body = TypeVar("Body", bound=msgspec.Struct)


def read_body(call: Call, decoder: msgspec.json.Decoder[Body]) -> Body:
    """The body as `decoder`'s type.

    Raises:
        ApiError: UNSUPPORTED_MEDIA_TYPE, INVALID_JSON, or INVALID_INPUT naming the field.
    """
    _require_json(call)
    raw = call.body()
    try:
        if not raw.isascii():
            # The decoder reads over fields that it does not know, whatever bytes stand in them.
            raw.decode()
        body = decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise ApiError("INVALID_INPUT", _in_words(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("INVALID_JSON", f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep() from error
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth(raw) > MAX_DEPTH:
        raise _too_deep()
    # Each member needs a colon: with no more colons than fields that were read, no name can be there twice.
    colons = raw.count(b":")
    if colons > 1 and colons > sum(value is not None for value in msgspec.structs.astuple(body)):
        _refuse_doubled_names(raw)
    return body


def _require_json(call: Call) -> None:
    content_type = call.header("CONTENT_TYPE")
    if content_type != "application/json" and not _is_json(content_type or ""):
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", "send Content-Type: application/json, in UTF-8")
    encoding = call.header("HTTP_CONTENT_ENCODING")
    if encoding is not None and encoding.strip().lower() not in _PLAIN:
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", f"Content-Encoding {encoding[:64]!r} is not read; send it plain")


@lru_cache(maxsize=64)
def _is_json(content_type: str) -> bool:
    """JSON whose charset, if it names one, is a spelling of UTF-8."""
    media_type, *parameters = content_type.lower().split(";")
    charsets = [
        value.strip(" \t\"'").translate(_NO_SEPARATORS)
        for name, _, value in (each.partition("=") for each in parameters)
        if name.strip() == "charset"
    ]
    return media_type.strip() == "application/json" and all(each in _UTF_8 for each in charsets)


def _depth(raw: bytes) -> int:
    """How deeply valid JSON is nested."""
    steps = _STRING.sub(b"", raw).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0)


def _too_deep() -> ApiError:
    return ApiError("INVALID_JSON", f"the body is nested too deeply; {MAX_DEPTH} levels are taken")


def _refuse_doubled_names(raw: bytes) -> None:
    """The last of two members with one name would win here and the first elsewhere: in a proxy that checks the model
    which a caller may use, say.
    """
    _names_once.decode(raw.decode())


def _object_of(members: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in members]
    if len(set(names)) < len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise ApiError("INVALID_JSON", f"the body has {doubled[:64]!r} twice in one object")


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


def timeout_s(settings: Settings, call: Call, asked_ms: float | None) -> float:
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


def idempotency_key(call: Call) -> str:
    """The caller's, or empty."""
    key = call.header("HTTP_IDEMPOTENCY_KEY")
    if key is None:
        return ""
    if not _IDEMPOTENCY_KEY.fullmatch(key):
        raise ApiError("INVALID_HEADER", "Idempotency-Key must be 1 to 255 printable ASCII characters")
    return key


def wants_fresh(call: Call) -> bool:
    """Whether it may not be answered with what was computed for somebody else."""
    control = call.header("HTTP_CACHE_CONTROL")
    return control is not None and any(each.strip().lower() in _FRESH for each in control.split(","))


def as_json(value: object) -> bytes:
    """Validated input back to JSON: one canonical spelling, whatever white space the caller used."""
    return _encode(value)

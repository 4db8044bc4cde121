"""From an HTTP request to a validated inference request; every refusal names what is wrong and what would be right."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from config.settings import Settings, is_loopback
from config.tiers import TIERS, Tier
from webapp.call import Call
from webapp.errors import ApiError

Milliseconds = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)]

_encode = msgspec.json.Encoder().encode
_TIER_BY_NAME = {tier.value: tier for tier in TIERS}


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


Body = TypeVar("Body")


def read_body(call: Call, decoder: msgspec.json.Decoder[Body]) -> Body:
    """The body as `decoder`'s type.

    Raises:
        ApiError: UNSUPPORTED_MEDIA_TYPE, INVALID_JSON, or INVALID_INPUT naming the field.
    """
    content_type = call.header("CONTENT_TYPE")
    if content_type != "application/json":
        media_type, _, parameters = (content_type or "").partition(";")
        charset = parameters.strip().lower().removeprefix("charset=").strip('"')
        if media_type.strip().lower() != "application/json" or charset not in {"", "utf-8"}:
            raise ApiError("UNSUPPORTED_MEDIA_TYPE", "send Content-Type: application/json, in UTF-8")
    raw = call.body()
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise ApiError("INVALID_INPUT", _in_words(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("INVALID_JSON", f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise ApiError("INVALID_JSON", "the body is nested too deeply") from error


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


def tier_of(settings: Settings, call: Call) -> Tier:
    """The caller's tier. With auth off, on loopback, the request may name one in `X-Tier`."""
    asked = call.header("HTTP_X_TIER")
    if asked is None or not is_loopback(settings.http_host):
        return settings.default_tier
    tier = _TIER_BY_NAME.get(asked)
    if tier is None:
        raise ApiError("INVALID_HEADER", f"X-Tier must be one of {', '.join(_TIER_BY_NAME)}")
    return tier


def timeout_s(settings: Settings, call: Call, asked_ms: float | None) -> float:
    """The caller's deadline in seconds from now: body over header, never above the server's own limit."""
    if asked_ms is None:
        header = call.header("HTTP_X_TIMEOUT_MS")
        if header is None:
            return settings.request_timeout_s
        asked_ms = milliseconds(header, "X-Timeout-Ms", "INVALID_HEADER")
    return min(asked_ms / 1000, settings.request_timeout_s)


def milliseconds(text: str, name: str, code: str) -> float:
    """A plain decimal number of milliseconds, not below 0; anything else is refused with `code`."""
    digits = text.strip()
    if digits.isascii() and digits.replace(".", "", 1).isdigit():
        return float(digits)
    raise ApiError(code, f"{name} must be a number of milliseconds, 0 or more")


def as_json(value: object) -> bytes:
    """Validated input back to JSON: one canonical spelling, whatever white space the caller used."""
    return _encode(value)

"""Inputs as models take them: JSON, or bytes.

    of a body, or of JSON ──encoded──┬─ input_type is json ─▶ JSON
                                     └─ any other ──────────▶ Binary ◀── bytes, or {"$base64": "…"} in JSON,
                                                                         or the text data:image/png;base64,…
                                          JSON ──────────▶ {"$ref": "https://…"}, which a worker fetches

Bytes are not looked into here: the executor reads an array or a table, in a process that may fail.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from config.allowed_hosts import ForbiddenTarget, RefHosts
from config.settings import Settings
from tasks.errors import BunchError, InvalidInput
from tasks.protocol.binary import BASE64
from tasks.referenced_inputs import REF, Reference, encode
from webapp.encoded import Binary, Encoded
from webapp.errors import ApiError
from webapp.media_types import MULTIPART, OF_TYPE, TAKEN, is_binary, is_taken, media_type_of
from webapp.request import HttpRequest

_DATA_URL, _IN_BASE64 = "data:", ";base64"


class BinaryInputs:
    """The models of one process that take bytes."""

    def __init__(self, settings: Settings) -> None:
        self._types: Mapping[str, str] = {
            name: model.input_type for name, model in settings.models.items() if model.takes_bytes
        }
        self._most_bytes = settings.blob_max_bytes
        self._hosts = RefHosts(settings.ref_hosts)

    def __bool__(self) -> bool:
        """True if any model takes bytes."""
        return bool(self._types)

    def __contains__(self, model: object) -> bool:
        """True if this model takes bytes."""
        return model in self._types

    def type_of(self, model: str) -> str:
        """The `input_type` of a model."""
        return self._types.get(model, "json")

    def require_taken(self, model: str, content_type: str) -> None:
        """Raise ApiError UNSUPPORTED_MEDIA_TYPE, if a model does not take a body of this media type as its input."""
        kind = self._types.get(model)
        if kind is None:
            raise ApiError(
                "UNSUPPORTED_MEDIA_TYPE", f"{model} takes JSON: send Content-Type: application/json, in UTF-8"
            )
        if not is_taken(kind, content_type):
            raise ApiError("UNSUPPORTED_MEDIA_TYPE", f"{model} takes {TAKEN[kind]}, not {content_type}")

    def encoded(self, model: str, value: Any, encode: Callable[[Any], bytes], name: str = "input") -> Encoded:
        """An input as its model takes it. `value` is JSON's, or a `Binary` of a body; `encode` makes JSON of the
        former.

        Raises:
            InvalidInput: it is JSON without the bytes that the model takes.
            ApiError: UNSUPPORTED_MEDIA_TYPE or PAYLOAD_TOO_LARGE.
        """
        if isinstance(value, Binary):
            self.require_taken(model, value.content_type)
            found = value
        elif (kind := self._types.get(model)) is None:
            return encode(value)
        elif isinstance(value, dict) and REF in value:
            return self._referring(value, name)
        else:
            found = _in_json(model, kind, value, name)
        if len(found.data) > self._most_bytes:
            raise ApiError("PAYLOAD_TOO_LARGE", f"{name}: more than {self._most_bytes} bytes (BUNCH_BLOB_MAX_BYTES)")
        return found

    def each_encoded(self, model: str, values: Iterable[Any]) -> tuple[Sequence[Encoded], Sequence[BunchError | None]]:
        """The inputs of a bulk call to a model that takes bytes, and the error of each that has none."""
        kind = self._types[model]
        found: list[Encoded] = []
        wrong: list[BunchError | None] = []
        for at, value in enumerate(values):
            try:
                name = f"inputs[{at}]"
                refers = isinstance(value, dict) and REF in value
                found.append(self._referring(value, name) if refers else _in_json(model, kind, value, name))
                wrong.append(None)
            except InvalidInput as error:
                found.append(Binary(b""))
                wrong.append(error)
        return found, wrong

    def _referring(self, value: dict[str, Any], name: str) -> bytes:
        """The JSON of an input that a worker shall fetch. Raises InvalidInput."""
        try:
            ref = msgspec.convert(value, Reference)
            self._hosts.target(ref.url)
        except (msgspec.ValidationError, ForbiddenTarget) as error:
            raise InvalidInput(f"{name}: {REF}: {error}") from None
        return encode(ref)


def _in_json(model: str, kind: str, value: Any, name: str) -> Binary:
    """The bytes in a value of JSON. Raises InvalidInput."""
    text: Any = None
    content_type = ""
    if isinstance(value, dict) and len(value) == 1:
        text = value.get(BASE64)
    elif isinstance(value, str) and value.startswith(_DATA_URL):
        about, _, rest = value[len(_DATA_URL) :].partition(",")
        if about.endswith(_IN_BASE64):
            text, content_type = rest, media_type_of(about)
    if not isinstance(text, str):
        raise InvalidInput(f'{name}: {model} takes {kind}: send {{"{BASE64}": "…"}}, or a body of {OF_TYPE[kind]}')
    if not is_taken(kind, content_type):
        raise InvalidInput(f"{name}: {model} takes {TAKEN[kind]}, not {content_type}")
    try:
        return Binary(binascii.a2b_base64(text, strict_mode=True), content_type)
    except ValueError as error:
        raise InvalidInput(f"{name}: not base64: {error}") from None


def has_binary_body(call: HttpRequest) -> bool:
    """True if the body is said to be bytes, or to hold some, rather than JSON alone."""
    media_type = media_type_of(call.header("CONTENT_TYPE"))
    return is_binary(media_type) or media_type == MULTIPART

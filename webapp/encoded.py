"""An input on its way to the queue: one JSON value, or bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from tasks.client.dedup import call_hash
from tasks.client.submission import NO_PARAMETERS, Submission
from tasks.protocol.binary import CONTENT_TYPE, wrapped_length

_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Binary(NamedTuple):
    """An input that is bytes. `content_type` is its media type; empty: unknown."""

    data: bytes
    content_type: str = ""


Encoded: TypeAlias = bytes | Binary


def size_of(value: Encoded) -> int:
    """The bytes of an input in the queue."""
    return wrapped_length(value.data) if isinstance(value, Binary) else len(value)


def with_content_type(parameters: bytes, content_type: str) -> bytes:
    """Parameters as JSON, with the media type of their input, which takes precedence over what a caller has named."""
    if not content_type:
        return parameters
    mine = {CONTENT_TYPE: content_type}
    return _encode(mine if parameters == NO_PARAMETERS else _members.decode(parameters) | mine)


def with_input(whole: Submission, value: Encoded, **changes: str | bytes) -> Submission:
    """The same submission with another input."""
    if isinstance(value, bytes):
        return replace(whole, input=value, **changes)
    parameters = with_content_type(whole.parameters, value.content_type)
    return replace(whole, input=value.data, binary=True, parameters=parameters, **changes)


def one_each(whole: Submission, inputs: Iterable[Encoded]) -> list[Submission]:
    """Make a submission for each input of a bulk call; the caller's request id remains the call's."""
    key = whole.idempotency_key
    if not key:
        return [with_input(whole, value, request_id="") for value in inputs]
    inputs = list(inputs)
    hashed = call_hash(inputs)
    # No caller's key contains a line feed.
    return [
        with_input(whole, value, request_id="", idempotency_key=f"{key}\n{number}", call_hash=hashed)
        for number, value in enumerate(inputs)
    ]

"""Bytes as an input, in messages and in bodies of JSON: `{"$base64": "…"}`.

    bytes ──wrapped──▶ {"$base64": "…"} ──▶ the queue ──▶ the executor ──unwrapped──▶ bytes

Only a model whose `input_type` is not `json` gets the bytes; for any other the same object is plain JSON. The media
type of the bytes, if anybody knows it, is `parameters["content_type"]`.
"""

from __future__ import annotations

from base64 import b64encode

import msgspec

BASE64 = "$base64"
CONTENT_TYPE = "content_type"
"""The parameter with the media type of an input, and the member of an output's metadata with that of the output."""
OUTPUT = "$output"
"""The parameter with the form of the output that is asked for: `NPY`, `ARROW`, or a datatype of KServe's."""
NPY, ARROW = "npy", "arrow"
OUTPUT_TYPE = "output_type"
"""The member of a result's metadata that says that its output is bytes, as base64."""

_BEFORE, _AFTER = b'{"$base64":"', b'"}'


class _Wrapped(msgspec.Struct, forbid_unknown_fields=True):
    value: bytes = msgspec.field(name=BASE64)


_decoder = msgspec.json.Decoder(_Wrapped)


def wrapped(raw: bytes) -> bytes:
    """The JSON of an input that is bytes."""
    return b"".join((_BEFORE, b64encode(raw), _AFTER))


def wrapped_length(raw: bytes) -> int:
    """The length of `wrapped(raw)`."""
    return len(_BEFORE) + len(_AFTER) + (len(raw) + 2) // 3 * 4


def unwrapped(value: bytes | memoryview) -> bytes:
    """The bytes in the JSON of an input. Raises ValueError, if it has another form."""
    try:
        return _decoder.decode(value).value
    except msgspec.MsgspecError as error:
        raise ValueError(f'not {{"{BASE64}": "…"}}: {error}') from None

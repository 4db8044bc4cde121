"""Media types of bodies and answers. Pure.

Content-Type ──media_type_of──▶ image/png ──is_binary──▶ the body is the input itself
Accept ──accepted──▶ whether an answer may be of a type
"""

from __future__ import annotations

import re

BYTES = "application/octet-stream"
NPY = "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"
MULTIPART = "multipart/form-data"
_KINDS = ("image/", "audio/", "video/")

# RFC 9110 8.3.1, with the characters of RFC 6838.
_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
# What each type of input takes besides JSON, in words.
TAKEN: dict[str, str] = {
    "bytes": f"{BYTES}, image/*, audio/* or video/*",
    "npy": f"{NPY} or {BYTES}",
    "arrow": f"{ARROW} or {BYTES}",
}
OF_TYPE = {"bytes": BYTES, "npy": NPY, "arrow": ARROW}
"""The media type of bytes of each type of input."""


def media_type_of(content_type: str | None) -> str:
    """The media type without its parameters, in lower case; empty if there is none, or it is malformed."""
    name = (content_type or "").partition(";")[0].strip(" \t").lower()
    return name if _TYPE.fullmatch(name) else ""


def is_binary(media_type: str) -> bool:
    """True if a body of this type is the input itself."""
    return media_type in {BYTES, NPY, ARROW} or media_type.startswith(_KINDS)


def is_taken(input_type: str, media_type: str) -> bool:
    """True if a model whose inputs have this type takes bytes of this media type. No media type is any."""
    if media_type in {"", BYTES}:
        return True
    return is_binary(media_type) if input_type == "bytes" else media_type == OF_TYPE[input_type]

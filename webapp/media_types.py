"""Media types of bodies and answers. Pure.

Content-Type ──media_type_of──▶ image/png ──is_binary──▶ the body is the input itself
Accept ──accepted──▶ whether an answer may be of a type
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

BYTES = "application/octet-stream"
NPY = "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"
MULTIPART = "multipart/form-data"
_KINDS = ("image/", "audio/", "video/")

# RFC 9110 8.3.1, with the characters of RFC 6838.
_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_RANGE = re.compile(r"(image|audio|video)/\*")
_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")
_LONGEST_ACCEPT = 1024
_JSON = "application/json"
_FORMS = {NPY: "npy", ARROW: "arrow"}
# What each type of input takes besides JSON, in words.
TAKEN: dict[str, str] = {
    "bytes": f"{BYTES}, image/*, audio/* or video/*",
    "npy": f"{NPY} or {BYTES}",
    "arrow": f"{ARROW} or {BYTES}",
}
OF_TYPE = {"bytes": BYTES, "npy": NPY, "arrow": ARROW}
"""The media type of bytes of each type of input."""


class Wish(NamedTuple):
    """An answer that a caller would rather have than JSON, by its `Accept`.

    Args:
        form: of an output that is no bytes by itself: `npy`, `arrow` or empty.
        types: media types or ranges like `image/`; an output that is bytes of one of them is the body.
    """

    form: str = ""
    types: tuple[str, ...] = ()

    def takes(self, content_type: str) -> bool:
        """True if bytes of this media type are wished for. Octet-stream is any."""
        return BYTES in self.types or any(
            content_type == each or (each[-1] == "/" and content_type.startswith(each)) for each in self.types
        )


NO_WISH = Wish()


@lru_cache(maxsize=256)
def wish_of(accept: str | None) -> Wish:
    """The wish in an `Accept` header. Only types that are named count, and only where JSON is not preferred: `*/*` is
    what clients send that have not thought of it.
    """
    if accept is None or "/" not in accept or len(accept) > _LONGEST_ACCEPT:
        return NO_WISH
    found = [_range(each) for each in accept.lower().split(",")]
    least = max((quality for name, quality in found if name == _JSON), default=0.0)
    named = [(name, quality) for name, quality in found if quality > 0 and quality >= least and name != _JSON]
    named.sort(key=lambda each: -each[1])
    types = tuple(name.removesuffix("*") for name, _ in named if _TYPE.fullmatch(name) or _RANGE.fullmatch(name))
    forms = (_FORMS[name] for name in types if name in _FORMS)
    return Wish(next(forms, ""), types) if types else NO_WISH


def _range(text: str) -> tuple[str, float]:
    """A media range and its quality; that of a malformed one is 0."""
    name, *parameters = text.split(";")
    quality = 1.0
    for each in parameters:
        key, _, value = each.partition("=")
        if key.strip() == "q":
            quality = float(value) if _QUALITY.fullmatch(value.strip()) else 0.0
    return name.strip(), quality


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

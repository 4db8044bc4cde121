"""Checks the structure of a JSON text by counting bytes, in time that depends on its length alone.

The sender chooses the shape of a body, and it is checked on the event loop that all requests share, and again in the
executor. So nothing here walks over values in Python: each step is one pass of C code over the text, and a mebibyte
takes milliseconds, whatever its shape.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

import msgspec

# Everything that reads a request later (worker, executor, the model itself) recurses per level, with stacks of
# different depth. This is far below the recursion limit of all of them, so that no input can be read here but not
# there.
MAX_DEPTH = 200
MAX_PARTS = 100_000
"""The most names, arrays and objects that a body may have. Each becomes a Python object, at 0.1 to 0.2 µs; numbers and
strings cost a fraction of that, and are bounded by the size of the body alone."""

_STRUCTURE = b'[{]}:"'
_OTHERS = bytes(set(range(256)) - set(_STRUCTURE))
_LONG_STRINGS = re.compile(rb'"[^"]*+"')
_BRACKETS = b"[{]}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
# One level deeper, one level back, as signed bytes.
_STEPS = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


def structure(raw: bytes) -> bytes:
    """Return the brackets, braces and colons of valid JSON that are outside of strings."""
    if b"\\" in raw:
        # Pairs first: the last of an odd number of backslashes escapes what follows it.
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes side by side end one string and begin the next, or are a string that is empty by now. Without them,
    # what is inside and outside of strings stays the same.
    bare = raw.translate(None, _OTHERS).replace(b'""', b"")
    return _LONG_STRINGS.sub(b"", bare) if b'"' in bare else bare


def too_deep(raw: bytes) -> bool:
    """True if valid JSON is nested in more than `MAX_DEPTH` levels."""
    # Nearly every body is too short to be nested so deeply, and is not searched.
    if len(raw) <= MAX_DEPTH or raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    steps = structure(raw).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > MAX_DEPTH


def too_many_parts(raw: bytes) -> bool:
    """True if JSON has more than `MAX_PARTS` names, arrays and objects; works for invalid JSON too."""
    return len(raw) > MAX_PARTS and _parts(raw) > MAX_PARTS and _parts(structure(raw)) > MAX_PARTS


def _parts(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b":")


def has_doubled_names(raw: bytes, read: msgspec.Struct) -> bool:
    """True if an object in `raw` has two members of one name; `read` is the decoded object, which kept the last of
    them; a field that was not given is None in it.

    Raises:
        msgspec.DecodeError, RecursionError: a field that `read` does not have is not valid JSON.
    """
    # Each member has a colon. If there are no more colons than fields were read, no name is there twice.
    colons = raw.count(b":")
    if colons <= 1:
        return False
    fields = msgspec.structs.astuple(read)
    given = len(fields) - fields.count(None)
    if colons <= given:
        return False
    # Strings are encoded as they were read, except for the spelling of a colon.
    if b"\\u003" not in raw and colons == _encode(read).count(b":") - (len(fields) - given):
        return False
    whole: Any = _decode(raw)
    return structure(raw).count(b":") != structure(_encode(whole)).count(b":")

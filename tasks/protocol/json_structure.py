"""What a JSON text is made of, found by counting bytes: in time that grows with the text and with nothing else.

Whoever sends a body chooses its shape, and all of it is looked at on the event loop that everybody shares, and often
again in the executor that its neighbours wait for. So nothing here walks over values in Python: each step is one pass
of C over the text, and a mebibyte takes milliseconds, whatever its shape.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

import msgspec

# Whoever reads a request further on (worker, executor, the model itself) recurses for each level, on stacks of other
# depths than ours: far below the recursion limit of all of them, so that no input can be read here and not there.
MAX_DEPTH = 200
MAX_PARTS = 100_000
"""How many names, arrays and objects a body may have. Each becomes an object of Python's, at a tenth of a microsecond
or two; numbers and strings cost a fraction of that, and are bounded by the size of the body alone."""

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
    """The brackets, braces and colons of valid JSON that do not stand in strings."""
    if b"\\" in raw:
        # Pairs first: what is left of a row of backslashes escapes whatever follows it.
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes side by side end one string and begin the next, or are one that is empty by now: without them, what
    # stands inside and outside of strings still does.
    bare = raw.translate(None, _OTHERS).replace(b'""', b"")
    return _LONG_STRINGS.sub(b"", bare) if b'"' in bare else bare


def too_deep(raw: bytes) -> bool:
    """Whether valid JSON is nested in more than `MAX_DEPTH` levels."""
    # Nearly every body is too short for it, and not even searched.
    if len(raw) <= MAX_DEPTH or raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    steps = structure(raw).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > MAX_DEPTH


def too_many_parts(raw: bytes) -> bool:
    """Whether JSON has more than `MAX_PARTS` names, arrays and objects; of what is not valid, either."""
    return len(raw) > MAX_PARTS and _parts(raw) > MAX_PARTS and _parts(structure(raw)) > MAX_PARTS


def _parts(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b":")


def has_doubled_names(raw: bytes, read: msgspec.Struct) -> bool:
    """Whether an object in `raw` has two members of one name; `read` is what was made of it, where the last one stays.

    Raises:
        msgspec.DecodeError, RecursionError: a field that `read` does not have is no JSON.
    """
    # Each member has a colon: with no more of them than fields that were read, no name can be there twice.
    colons = raw.count(b":")
    if colons <= 1:
        return False
    fields = msgspec.structs.astuple(read)
    given = len(fields) - fields.count(None)
    if colons <= given:
        return False
    # Strings are written as they were read, but for how they spell a colon.
    if b"\\u003" not in raw and colons == _encode(read).count(b":") - (len(fields) - given):
        return False
    whole: Any = _decode(raw)
    return structure(raw).count(b":") != structure(_encode(whole)).count(b":")

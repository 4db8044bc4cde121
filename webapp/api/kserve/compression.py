"""Compression of whole bodies, as Triton's clients ask for it: gzip and deflate, both ways.

The length of the JSON in front of binary tensors is counted without compression.
"""

from __future__ import annotations

import zlib

import gevent

from webapp.errors import ApiError

# zlib's: finds out by itself whether it is gzip or zlib, which HTTP calls deflate.
_EITHER = zlib.MAX_WBITS | 32
_GZIP = zlib.MAX_WBITS | 16
# In a packet it costs nothing on the way, and time on both sides.
_WORTH_IT_BYTES = 1400
_FASTEST = 1
# Other requests go on in between.
_AT_ONCE_BYTES = 256 * 1024
_CODINGS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


def plain(body: bytes, encoding: str | None, most_bytes: int) -> bytes:
    """Decompress a body, to at most `most_bytes`.

    Raises:
        ApiError: UNSUPPORTED_MEDIA_TYPE, PAYLOAD_TOO_LARGE, INVALID_INPUT.
    """
    coding = (encoding or "identity").strip().lower()
    if coding in {"", "identity"}:
        return body
    if coding not in _CODINGS:
        raise ApiError(
            "UNSUPPORTED_MEDIA_TYPE", f"Content-Encoding {coding[:64]!r} is not supported; use gzip or deflate"
        )
    inflater = zlib.decompressobj(_EITHER)
    parts: list[bytes] = []
    left = most_bytes + 1
    try:
        while left and not inflater.eof:
            part = inflater.decompress(body, min(left, _AT_ONCE_BYTES))
            body = inflater.unconsumed_tail
            if not part and not body:
                break
            parts.append(part)
            left -= len(part)
            if len(part) == _AT_ONCE_BYTES:
                gevent.sleep(0)
    except zlib.error as error:
        raise ApiError("INVALID_INPUT", f"the body is not {coding}: {error}") from error
    if not left:
        raise ApiError("PAYLOAD_TOO_LARGE", f"the body has more than {most_bytes} bytes when decompressed")
    if not inflater.eof or inflater.unused_data:
        problem = "is cut short" if not inflater.eof else "goes on after its end"
        raise ApiError("INVALID_INPUT", f"the body is {coding}, but {problem}")
    return b"".join(parts)


def chosen(accepted: str | None, size: int) -> str:
    """The coding of an answer of `size` bytes whose caller sent this `Accept-Encoding`; empty for none."""
    if accepted is None or size < _WORTH_IT_BYTES:
        return ""
    refused, named = set(), []
    for each in accepted.lower().split(",")[:16]:
        coding, _, parameter = each.partition(";")
        if parameter.replace(" ", "") in {"q=0", "q=0.0", "q=0.00", "q=0.000"}:
            refused.add(coding.strip())
        else:
            named.append(coding.strip())
    return next((each for each in ("gzip", "deflate") if each in named and each not in refused), "")


def compressed(body: bytes, coding: str) -> bytes:
    """The body in a coding that `chosen` has returned."""
    deflater = zlib.compressobj(_FASTEST, zlib.DEFLATED, _CODINGS[coding])
    parts = []
    for start in range(0, len(body), _AT_ONCE_BYTES):
        if start:
            gevent.sleep(0)
        parts.append(deflater.compress(body[start : start + _AT_ONCE_BYTES]))
    return b"".join([*parts, deflater.flush()])

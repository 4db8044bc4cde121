"""Bodies that cost their reader as much as their size allows, each as a function of its size in bytes."""

from __future__ import annotations

from collections.abc import Callable

_FRAME = 64


def _filled(unit: bytes, opening: bytes = b"[", closing: bytes = b"]") -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        room = size - _FRAME - len(opening) - len(closing)
        return b'{"input": %b%b%b}' % (opening, b",".join([unit] * (room // (len(unit) + 1))), closing)

    return make


def _numbered(form: bytes, opening: bytes, closing: bytes) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        each = len(form % 0) + 1
        numbers = range((size - _FRAME) // each)
        return b'{"input": %b%b%b}' % (opening, b",".join(form % number for number in numbers), closing)

    return make


def _text(unit: bytes) -> Callable[[int], bytes]:
    return lambda size: b'{"input": "%b"}' % (unit * ((size - _FRAME) // len(unit)))


def _doubled_at_the_end(size: int) -> bytes:
    """One name twice among as many names as fit: the case that made the first search for duplicates quadratic."""
    return _numbered(b'"%06x":0', b"{", b',"000000":0}')(size)


def _many_doubled(size: int) -> bytes:
    names = b",".join(b'"%06x":0' % number for number in range((size - _FRAME) // 24))
    return b'{"input": {%b,%b}}' % (names, names)


def _nested(size: int) -> bytes:
    """Arrays nested almost as deep as allowed, again and again, up to the allowed number of arrays."""
    return _filled(b"[" * 150 + b"]" * 150)(min(size, 190_000))


def _mixed(unit: bytes) -> Callable[[int], bytes]:
    """As many arrays as are allowed, and then the rest in `unit`s."""

    def make(size: int) -> bytes:
        arrays = min(99_000, size // 8)
        return b'{"input": [%b%b0]}' % (
            b"[]," * arrays,
            (unit + b",") * ((size - _FRAME - 3 * arrays) // (len(unit) + 1)),
        )

    return make


SHAPES: dict[str, Callable[[int], bytes]] = {
    "numbers": _filled(b"0"),
    "floats that grow": _filled(b"1e15"),
    "whole numbers of 640 digits": _filled(b"9" * 640),
    "whole numbers of 5,000 digits": _filled(b"9" * 5000),
    "one number": lambda size: b'{"input": 0.%b}' % (b"1" * (size - _FRAME)),
    "one whole number": lambda size: b'{"input": %b}' % (b"1" * (size - _FRAME)),
    "empty arrays": _filled(b"[]"),
    "empty objects": _filled(b"{}"),
    "objects of one member": _filled(b'{"":0}'),
    "small arrays": _filled(b"[12345678]"),
    "empty strings": _filled(b'""'),
    "short strings": _filled(b'"ab"'),
    "colons in strings": _filled(b'":"'),
    "brackets in strings": _text(b"[{"),
    "many names": _numbered(b'"%06x":0', b"{", b"}"),
    "long names": _numbered(b'"' + b"n" * 200 + b'%06x":0', b"{", b"}"),
    "escaped names": _numbered(b'"\\u003a%06x":0', b"{", b"}"),
    "one name twice": _doubled_at_the_end,
    "every name twice": _many_doubled,
    "the same name all over": _filled(b'"a":0', b"{", b"}"),
    "fields that nobody knows": _numbered(b'"%06x":0', b"0,", b""),
    "nested": _nested,
    "nested without end": lambda size: b'{"input": ' + b"[" * (size - _FRAME),
    "arrays, then strings": _mixed(b'""'),
    "arrays, then floats": _mixed(b"1e15"),
    "escapes": _text(b'\\"'),
    "backslashes": _text(b"\\\\"),
    "unicode escapes": _text(b"\\u00e9"),
    "two-byte letters": _text("é".encode()),
    "four-byte letters": _text("😀".encode()),
    "white space": lambda size: b'{"input": %b1}' % (b" " * (size - _FRAME)),
    "not closed": lambda size: b'{"input": "' + b"a" * (size - _FRAME),
    "not JSON": lambda size: b"\x00" * size,
    "not UTF-8": lambda size: b'{"input": "%b"}' % (b"\xc3\x28" * ((size - _FRAME) // 2)),
    "parameters": lambda size: b'{"input": 1, "parameters": {%b}}' % _numbered(b'"%06x":0', b"", b"")(size)[10:-1],
    "a long model": lambda size: b'{"input": 1, "model": "%b"}' % (b"m" * (size - _FRAME)),
}

# For `/v1/inference/bulk`.
BULK: dict[str, Callable[[int], bytes]] = {
    "a thousand inputs": lambda size: b'{"inputs": [%b]}' % b",".join([b'"%b"' % (b"a" * (size // 1000 - 8))] * 1000),
    "too many inputs": lambda size: b'{"inputs": [%b]}' % b",".join([b"0"] * (size // 2 - _FRAME)),
    "parameters for a thousand": lambda size: (
        b'{"inputs": [%b], "parameters": {"p": "%b"}}' % (b",".join([b"0"] * 1000), b"p" * (size - 2_200))
    ),
}

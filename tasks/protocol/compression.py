"""Decompresses bodies of Celery messages, under kombu's names for the codecs, up to a limit.

A kilobyte can stand for a megabyte of zeros. Kombu's own `decompress` has no limit, so anybody who may queue a message
could choose how much memory a worker takes. These decompressors stop at the limit.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Protocol

# A level of 9 asks for 65 MiB, whatever the size of the content.
_LZMA_MEMORY_BYTES = 80 * 1024 * 1024


class TooLong(ValueError):
    """The body is larger than the limit."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


_KINDS: tuple[tuple[Callable[[], _Decompressor], tuple[str, ...]], ...] = (
    (zlib.decompressobj, ("application/x-gzip", "gzip", "zlib")),
    (bz2.BZ2Decompressor, ("application/x-bz2", "bzip2", "bzip")),
    (lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY_BYTES), ("application/x-lzma", "lzma", "xz")),
)
_BY_NAME = {name: make for make, names in _KINDS for name in names}
_KNOWN = ", ".join(names[-1] for _, names in _KINDS)


def decompress(body: bytes, name: str, limit: int) -> bytes:
    """Return `body` decompressed, at most `limit` bytes. Raises ValueError, of which `TooLong` is one."""
    make = _BY_NAME.get(name)
    if make is None:
        raise ValueError(f"compression {name[:64]!r} is not supported; use {_KNOWN}")
    decompressor = make()
    try:
        plain = decompressor.decompress(body, limit + 1)
        if len(plain) > limit:
            raise TooLong(f"the message's body is longer than {limit} bytes when decompressed (BUNCH_MAX_BODY_BYTES)")
        # The last bytes may only mark the end.
        if not decompressor.eof and not decompressor.decompress(b"", 1) and not decompressor.eof:
            raise ValueError(f"cannot decompress {name!r}: it is cut short")
    except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
        raise ValueError(f"cannot decompress {name!r}: {error}") from error
    return plain

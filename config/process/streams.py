"""Standard output and error that never fail: on a full disk or a closed pipe the text is lost, and the process goes
on.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, TextIO

_STANDARD = {"stdout": 1, "stderr": 2}


class Unfailing(io.RawIOBase):
    """Writes to a descriptor; what it does not accept is lost."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        size = len(data)
        try:
            return os.write(self._descriptor, data)
        except OSError:
            return size


def unfailing(stream: TextIO) -> TextIO:
    """The same stream, line-buffered, in a form that never raises OSError."""
    encoding, raw = stream.encoding or "utf-8", Unfailing(stream.fileno())
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=True)


def keep_talking() -> None:
    """Make prints safe: from now on none ends this process or becomes a model's error.

    Streams that have been replaced by somebody else are left alone.
    """
    for name, descriptor in _STANDARD.items():
        stream = getattr(sys, name)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is getattr(sys, f"__{name}__") and stream.fileno() == descriptor:
                stream.flush()
                new = unfailing(stream)
                # Celery prints its banner to `sys.__stdout__`.
                setattr(sys, name, new)
                setattr(sys, f"__{name}__", new)

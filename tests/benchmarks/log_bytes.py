"""Bytes in Redis' append-only log for each request, by the command that wrote them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.bunch_system import Bunch
from tests.benchmarks.load import ensure_wrk, run_wrk
from tests.benchmarks.verify import verify_echo

# The server writes the log's file once in each turn of its event loop.
_SETTLES_S = 1.0
_NAME = re.compile(rb"[0-9a-f-]{8,}|\d{3,}")
_KINDS_SHOWN = 8


def log_bytes(duration_s: int, connections: int) -> dict[str, Any]:
    """Bytes per request of the no-op model at `connections`: in all, and the largest kinds."""
    bunch = Bunch()
    with bunch.running("noop"):
        verify_echo(bunch.url, bunch.shape)
        time.sleep(_SETTLES_S)
        before = {path: path.stat().st_size for path in _logs(bunch.folder)}
        load = run_wrk(ensure_wrk(), bunch.url, bunch.shape, connections=connections, duration_s=duration_s)
        time.sleep(_SETTLES_S)
        spent: Counter[str] = Counter()
        for path in _logs(bunch.folder):
            for kind, size in commands(path.read_bytes()[before.get(path, 0) :]):
                spent[kind] += size
    return {
        "requests": load.requests,
        "bytes_per_request": round(spent.total() / load.requests),
        "each": {kind: round(size / load.requests, 1) for kind, size in spent.most_common(_KINDS_SHOWN)},
    }


def _logs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.incr.aof"))


def commands(log: bytes) -> Iterator[tuple[str, int]]:
    """The commands of a log, as `(verb and kind of key, bytes)`; MSETEX has its results behind a count."""
    at = 0
    while at < len(log):
        start, at = at, log.index(b"\n", at) + 1
        if log[start : start + 1] != b"*":
            # A comment: a time stamp.
            continue
        words = []
        for _ in range(int(log[start + 1 : at])):
            end = log.index(b"\n", at)
            size = int(log[at + 1 : end])
            words.append(log[end + 1 : end + 1 + min(size, 64)])
            at = end + size + 3
        verb, key = words[0].decode().upper(), words[1] if len(words) > 1 else b""
        kind = "results" if verb == "MSETEX" else _NAME.sub(b"*", key).decode(errors="replace")
        yield f"{verb} {kind}".strip(), at - start

"""The results as tables for README: a row for each system, a column for each load."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.report import MODEL_TITLES, OURS, OpenRow, Row
from tests.benchmarks.system import MODELS, Model

_TITLES = {
    OURS: "**Bunch** (durable queue in Redis)",
    "bunch_guarded": "Bunch with API keys, limits and ledger",
    "bunch_collocated": "Bunch in one process (queue in memory, `--collocated`)",
    "mosec": "mosec (HTTP and queue in Rust, in memory)",
    "triton": "NVIDIA Triton (C++, in memory, Python backend)",
    "flask_celery": "Flask + plain Celery, `AsyncResult.get`",
    "celery_batches": "Flask + celery-batches",
    "litserve": "LitServe",
    "litserve_tuned": "LitServe, tuned",
    "bentoml": "BentoML",
    "ray_serve": "Ray Serve",
}
_MARKED = "\n\n\\* With errors or timeouts, or with a load generator that was late itself."


def markdown(found: Sequence[Row], open_found: Sequence[OpenRow]) -> str:
    """A table for each model. One connection is shown by its median latency, more by requests/s, half load by both."""
    tables = "\n\n".join(
        _table(model, [row for row in found if row.model == model], [row for row in open_found if row.model == model])
        for model in MODELS
        if any(row.model == model for row in found)
    )
    return tables + (_MARKED if "*" in tables.replace("**", "") else "")


def _table(model: Model, found: Sequence[Row], open_found: Sequence[OpenRow]) -> str:
    levels = sorted({(row.payload_bytes, row.connections) for row in found})
    payloads = sorted({row.payload_bytes for row in open_found})
    several = len({payload for payload, _ in levels}) > 1
    busiest = max(((row.connections, -row.payload_bytes) for row in found if row.connections <= 256), default=(0, 0))
    compared = (-busiest[1], busiest[0])
    rates = {(row.system, row.payload_bytes, row.connections): row for row in found}
    half = {(row.system, row.payload_bytes): row for row in open_found}

    def rate(system: str) -> float:
        row = rates.get((system, *compared))
        return row.rps if row else 0.0

    head = [
        MODEL_TITLES[model],
        *(
            f"{_size(payload) if several else ''}{connections:,}" + (": p50 ms" if connections == 1 else "")
            for payload, connections in levels
        ),
        *(f"{_size(payload) if several else ''}half load: requests/s; p50, p99 ms" for payload in payloads),
        f"Bunch is, at {compared[1]:,}",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for system in sorted(dict.fromkeys(row.system for row in found), key=rate, reverse=True):
        cells = [_TITLES.get(system, system)]
        cells += [_closed(rates.get((system, *level))) for level in levels]
        cells += [_open(half.get((system, payload))) for payload in payloads]
        ratio = "" if system == OURS or not rate(system) or not rate(OURS) else f"{rate(OURS) / rate(system):.2f}×"
        lines.append("| " + " | ".join([*cells, ratio]) + " |")
    return "\n".join(lines)


def _size(payload_bytes: int) -> str:
    return f"{payload_bytes // 1024} KB, " if payload_bytes >= 1024 else f"{payload_bytes} B, "


def _closed(row: Row | None) -> str:
    if row is None:
        return "–"
    # An error or a timeout is no slow answer but none.
    mark = "*" if row.errors or row.timeouts else ""
    return f"{row.p50_ms:,.1f}{mark}" if row.connections == 1 else f"{row.rps:,.0f}{mark}"


def _open(row: OpenRow | None) -> str:
    if row is None:
        return "–"
    mark = "*" if row.failed or row.client else ""
    return f"{row.offered_rps:,.0f}; {row.p50_ms:,.1f}, {row.p99_ms:,.0f}{mark}"

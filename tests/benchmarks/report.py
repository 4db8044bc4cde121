"""Medians and ratios as tables, JSON, and a plot where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import cores
from tests.benchmarks.measure import OpenSample, Outcome, Sample
from tests.benchmarks.plan import Plan
from tests.benchmarks.system import MODEL_LIMIT_RPS, MODELS, Model

OURS = "bunch"
MODEL_TITLES: dict[Model, str] = {"noop": "no-op model", "50ms": "50 ms model (64 a batch)"}
_HEAD = (
    "system",
    "requests/s",
    "lowest–highest",
    "p50 ms",
    "p99 ms",
    "errors",
    "timeouts",
    "Bunch/it",
    "p50 it/Bunch",
)
_OPEN_HEAD = ("system", "offered/s", "p50 ms", "p95 ms", "p99 ms", "failed", "late ms", "client", "Bunch/it")


@dataclass(frozen=True, slots=True)
class Row:
    """One system at one level: medians over the rounds; errors and timeouts summed.

    `rps_ratio` is Bunch's requests/s over this system's, `p50_ratio` this system's p50 over Bunch's: above 1,
    Bunch is ahead. None without a Bunch to compare with.
    """

    system: str
    model: Model
    payload_bytes: int
    connections: int
    rounds: int
    rps: float
    rps_lowest: float
    rps_highest: float
    p50_ms: float
    p99_ms: float
    errors: int
    timeouts: int
    rps_ratio: float | None = None
    p50_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class OpenRow:
    """One system at half of its own load: medians over the rounds; failures summed.

    `offered_ratio` is what Bunch was offered over what this system was: above 1, Bunch carried more meanwhile.
    `client` counts the rounds in which the load generator was the limit.
    """

    system: str
    model: Model
    payload_bytes: int
    rounds: int
    offered_rps: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    failed: int
    late_ms: float
    client: int
    offered_ratio: float | None = None


def open_rows(samples: Sequence[OpenSample]) -> list[OpenRow]:
    """One row for each (model, payload, system), the system with the lowest p50 first."""
    found = []
    for model, payload_bytes in sorted({(MODELS.index(each.model), each.payload_bytes) for each in samples}):
        here = [each for each in samples if (each.model, each.payload_bytes) == (MODELS[model], payload_bytes)]
        level = [_open_row(name, [each for each in here if each.system == name]) for name in _names(here)]
        ours = next((row for row in level if row.system == OURS), None)
        if ours is not None:
            level = [replace(row, offered_ratio=ours.offered_rps / row.offered_rps) for row in level]
        found += sorted(level, key=lambda row: row.p50_ms)
    return found


def _open_row(name: str, samples: Sequence[OpenSample]) -> OpenRow:
    rounds = [sample.latencies for sample in samples]
    return OpenRow(
        system=name,
        model=samples[0].model,
        payload_bytes=samples[0].payload_bytes,
        rounds=len(rounds),
        offered_rps=median(each.offered_rps for each in rounds),
        p50_ms=median(each.p50_ms for each in rounds),
        p95_ms=median(each.p95_ms for each in rounds),
        p99_ms=median(each.p99_ms for each in rounds),
        failed=sum(each.failed for each in rounds),
        late_ms=max(each.late_ms for each in rounds),
        client=sum(each.client is not None for each in rounds),
    )


def rows(samples: Sequence[Sample]) -> list[Row]:
    """One row for each (model, payload, connections, system), the quickest system of a level first."""
    levels = sorted({(MODELS.index(each.model), each.payload_bytes, each.connections) for each in samples})
    found = []
    for model_index, payload_bytes, connections in levels:
        level_of = (MODELS[model_index], payload_bytes, connections)
        here = [each for each in samples if (each.model, each.payload_bytes, each.connections) == level_of]
        level = [_row(name, [sample for sample in here if sample.system == name]) for name in _names(here)]
        ours = next((row for row in level if row.system == OURS), None)
        found += sorted((_compared(row, ours) for row in level), key=lambda row: -row.rps)
    return found


def _names(samples: Sequence[Sample] | Sequence[OpenSample]) -> list[str]:
    return list(dict.fromkeys(sample.system for sample in samples))


def _row(name: str, samples: Sequence[Sample]) -> Row:
    loads = [sample.load for sample in samples]
    rates = [load.rps for load in loads]
    return Row(
        system=name,
        model=samples[0].model,
        payload_bytes=samples[0].payload_bytes,
        connections=samples[0].connections,
        rounds=len(samples),
        rps=median(rates),
        rps_lowest=min(rates),
        rps_highest=max(rates),
        p50_ms=median(load.p50_ms for load in loads),
        p99_ms=median(load.p99_ms for load in loads),
        errors=sum(load.errors for load in loads),
        timeouts=sum(load.timeouts for load in loads),
    )


def _compared(row: Row, ours: Row | None) -> Row:
    if ours is None:
        return row
    values = asdict(row) | {
        "rps_ratio": ours.rps / row.rps if row.rps else None,
        "p50_ratio": row.p50_ms / ours.p50_ms if ours.p50_ms else None,
    }
    return Row(**values)


def tables(found: Sequence[Row], open_found: Sequence[OpenRow] = ()) -> str:
    """A table for each level, then one for the half load of each payload."""
    parts = []
    for level_of in dict.fromkeys((row.model, row.payload_bytes, row.connections) for row in found):
        level = [row for row in found if (row.model, row.payload_bytes, row.connections) == level_of]
        model, payload_bytes, connections = level_of
        limit = MODEL_LIMIT_RPS[model]
        rounds = max(row.rounds for row in level)
        title = f"{MODEL_TITLES[model]}, inputs of {payload_bytes:,} bytes, "
        title += f"{connections:,} connection{'s' * (connections > 1)}, median of {rounds}"
        if limit:
            title += f"; the model's own limit is {min(limit, connections * limit / 64):.0f}/s"
        parts += [title, _grid([_HEAD, *(_cells(row) for row in level)]), ""]
    for model, payload_bytes in dict.fromkeys((row.model, row.payload_bytes) for row in open_found):
        here = [row for row in open_found if (row.model, row.payload_bytes) == (model, payload_bytes)]
        title = f"{MODEL_TITLES[model]}, inputs of {payload_bytes:,} bytes, open loop at half load, median of "
        parts += [f"{title}{max(row.rounds for row in here)}", _grid([_OPEN_HEAD, *map(_open_cells, here)]), ""]
    parts.append("Latencies are of the requests answered within a run; errors and timeouts are sums of all rounds.")
    if open_found:
        parts.append(
            "In the open loop requests are due at half of the most that the system's closed loops gave, and a latency "
            "counts from then.\n`client` counts the rounds in which the load generator was the limit: distrust those."
        )
    return "\n".join(parts)


def _open_cells(row: OpenRow) -> tuple[str, ...]:
    return (
        row.system,
        f"{row.offered_rps:,.0f}",
        f"{row.p50_ms:,.2f}",
        f"{row.p95_ms:,.2f}",
        f"{row.p99_ms:,.1f}",
        str(row.failed),
        f"{row.late_ms:,.1f}",
        str(row.client) if row.client else "–",
        "–" if row.offered_ratio is None else f"{row.offered_ratio:.2f}×",
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.system,
        f"{row.rps:,.0f}",
        f"{row.rps_lowest:,.0f}–{row.rps_highest:,.0f}",
        f"{row.p50_ms:,.2f}",
        f"{row.p99_ms:,.1f}",
        str(row.errors),
        str(row.timeouts),
        "–" if row.rps_ratio is None else f"{row.rps_ratio:.2f}×",
        "–" if row.p50_ratio is None else f"{row.p50_ratio:.2f}×",
    )


def _grid(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
            ]
        )
        for line in lines
    )


def as_json(plan: Plan, outcome: Outcome, versions: dict[str, str]) -> dict[str, Any]:
    """All data: the machine, the plan, each sample, the medians, the failures."""
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "cores": asdict(cores.of_this_machine()),
            "file_descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
            "processor": _processor(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "load_average": os.getloadavg(),
        },
        "plan": asdict(plan),
        "versions": versions,
        "medians": [asdict(row) for row in rows(outcome.samples)],
        "half_load": [asdict(row) for row in open_rows(outcome.open_samples)],
        "samples": [asdict(sample) for sample in outcome.samples],
        "open_samples": [asdict(sample) for sample in outcome.open_samples],
        "not_measured": [asdict(each) for each in outcome.left],
        "failures": outcome.failures,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def plot(found: Sequence[Row], path: Path) -> bool:
    """Bars of requests/s on a logarithmic scale, a panel for each model; False without matplotlib.

    Only the smallest payload is drawn; the tables have them all.
    """
    if not found or importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]

    smallest = min(row.payload_bytes for row in found)
    found = [row for row in found if row.payload_bytes == smallest]
    models = list(dict.fromkeys(row.model for row in found))
    figure = Figure(figsize=(7 * len(models), 5), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for panel, model in zip(panels, models, strict=True):
        here = [row for row in found if row.model == model]
        systems = list(dict.fromkeys(row.system for row in sorted(here, key=lambda row: row.rps)))
        levels = sorted({row.connections for row in here})
        for index, connections in enumerate(levels):
            rates = {row.system: row.rps for row in here if row.connections == connections}
            places = [place + (index - (len(levels) - 1) / 2) * 0.8 / len(levels) for place in range(len(systems))]
            panel.barh(places, [rates.get(name, 0) for name in systems], 0.8 / len(levels), label=str(connections))
        panel.set_yticks(range(len(systems)), systems)
        panel.set_xscale("log")
        panel.set_xlabel("requests/s")
        panel.set_title(MODEL_TITLES[model])
        panel.legend(title="connections")
    figure.savefig(path, dpi=120)
    return True

"""Medians and ratios as tables, JSON, and a plot where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.measure import Outcome, Plan, Sample
from tests.benchmarks.system import MODEL_LIMIT_RPS, MODELS, Model

OURS = "bunch"
_MODEL_TITLES: dict[Model, str] = {"noop": "no-op model", "50ms": "50 ms model (64 a batch)"}
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


def _names(samples: Sequence[Sample]) -> list[str]:
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


def tables(found: Sequence[Row]) -> str:
    """A table for each level."""
    parts = []
    for level_of in dict.fromkeys((row.model, row.payload_bytes, row.connections) for row in found):
        level = [row for row in found if (row.model, row.payload_bytes, row.connections) == level_of]
        model, payload_bytes, connections = level_of
        limit = MODEL_LIMIT_RPS[model]
        rounds = max(row.rounds for row in level)
        title = f"{_MODEL_TITLES[model]}, inputs of {payload_bytes:,} bytes, "
        title += f"{connections} connection{'s' * (connections > 1)}, median of {rounds}"
        if limit:
            title += f"; the model's own limit is {min(limit, connections * limit / 64):.0f}/s"
        parts += [title, _grid([_HEAD, *(_cells(row) for row in level)]), ""]
    parts.append("Latencies are of the requests answered within a run; errors and timeouts are sums of all rounds.")
    return "\n".join(parts)


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
            "processor": _processor(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "load_average": os.getloadavg(),
        },
        "plan": asdict(plan),
        "versions": versions,
        "medians": [asdict(row) for row in rows(outcome.samples)],
        "samples": [asdict(sample) for sample in outcome.samples],
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
        panel.set_title(_MODEL_TITLES[model])
        panel.legend(title="connections")
    figure.savefig(path, dpi=120)
    return True

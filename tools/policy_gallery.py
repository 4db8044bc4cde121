"""`python -m tools.policy_gallery`: every policy on every workload, as pictures and a table in docs/policies.md.

The same seed gives the same files, so a changed rule shows as a change of the files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from batching.policy import POLICIES, make
from batching.simulator.engine import simulate
from batching.simulator.report import Report
from batching.simulator.scenario import Scenario
from batching.simulator.workloads import MAX_BATCH_SIZE, WORKLOADS, Workload

SEED = 1
PAGE = Path("docs/policies.md")
PICTURES = Path("docs/policies")
_BLOCK = re.compile(r"(<!-- gallery -->\n).*?(<!-- end of gallery -->)", re.DOTALL)
_QUANTILES = np.concatenate([np.linspace(0, 0.98, 25), 1 - np.logspace(-1.7, -4, 20)])


def run(workload: Workload, policy: str, seed: int = SEED) -> Report:
    """Run one policy, with the settings of a model that sets only its policy."""
    return simulate(
        Scenario(
            name=workload.name,
            arrivals=workload.arrivals,
            service=workload.service,
            policy=lambda: make(policy, MAX_BATCH_SIZE, None, {}),
            duration_s=workload.duration_s,
            max_batch_size=MAX_BATCH_SIZE,
            executors=workload.executors,
            deadlines_s=(workload.deadlines_s,) * 3,
            overheads=workload.overheads,
            warm_up_s=workload.duration_s / 20,
        ),
        seed,
    )


def behind_best(workload: Workload, reports: Mapping[str, Report], policy: str = "adaptive") -> float:
    """The distance of `policy` from the best of the others, as a share; below 0: ahead."""
    measure = workload.measure
    values = {name: measure.of(report) for name, report in reports.items()}
    best = max((value for name, value in values.items() if name != policy), key=lambda value: measure.sign * value)
    return measure.behind(values[policy], best)


def picture(workload: Workload, reports: Mapping[str, Report], path: Path) -> None:
    """Draw the tail of the latencies: the fraction of requests that take longer than a number of milliseconds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Without these two, every run would write a different file.
    mpl.rcParams["svg.hashsalt"] = "bunch"
    # Text as text, which makes much smaller files.
    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, report in reports.items():
        took_ms = np.concatenate(report.latencies_s) * 1000
        if len(took_ms):
            known = _QUANTILES[1 / len(took_ms) <= 1 - _QUANTILES]
            axes.plot(np.quantile(took_ms, known), 1 - known, label=name, linewidth=2.2 if name == "adaptive" else 1.1)
    axes.set(xscale="log", yscale="log", xlabel="latency, ms", ylabel="fraction that takes longer", title=workload.says)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path, metadata={"Date": None})


def table(rows: Mapping[Workload, Mapping[str, Report]]) -> str:
    """Markdown with a row per workload and a column per policy, the best in bold."""
    lines = [
        "| workload | counts | "
        + " | ".join(f"`{name}`" for name in POLICIES)
        + " | `adaptive` behind the best other |",
        "|---|---|" + "---:|" * (len(POLICIES) + 1),
    ]
    for workload, reports in rows.items():
        measure = workload.measure
        values = {name: measure.of(report) for name, report in reports.items()}
        best = max(values.values(), key=lambda value: measure.sign * value)
        cells = [f"**{value:,.1f}**" if value == best else f"{value:,.1f}" for value in values.values()]
        lines.append(
            f"| {workload.name} | {measure.name}, {measure.unit} | "
            + " | ".join(cells)
            + f" | {behind_best(workload, reports):+.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run all policies on all workloads, draw them, and write the table into the page."""
    PICTURES.mkdir(exist_ok=True)
    rows: dict[Workload, dict[str, Report]] = {}
    for workload in WORKLOADS:
        reports = {name: run(workload, name) for name in POLICIES}
        picture(workload, reports, PICTURES / f"{workload.name.replace(' ', '-')}.svg")
        rows[workload] = reports
        sys.stderr.write(f"{workload.name}: {behind_best(workload, reports):+.1%}\n")
    pictures = "\n\n".join(
        f"**{workload.name}**: {workload.says}\n\n![{workload.name}](policies/{workload.name.replace(' ', '-')}.svg)"
        for workload in WORKLOADS
    )
    block = f"{table(rows)}\n\n{pictures}\n"
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_BLOCK.sub(lambda found: found[1] + block + found[2], page), encoding="utf-8")


if __name__ == "__main__":
    main()

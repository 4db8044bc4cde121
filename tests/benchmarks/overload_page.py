"""The results of `tests.benchmarks.overload` as a picture and as a block of docs/benchmarks.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.loadgen.load import Run
from cli.loadgen.summary import percentile
from config.tiers import TIERS, Tier
from tests.benchmarks.overload import Row, answers_of, came_s, refused_by_second

_BEGIN, _END = "<!-- overload: begin -->", "<!-- overload: end -->"
# Colours that a colour-blind reader can tell apart, too.
_COLORS = {Tier.ENTERPRISE: "#0072b2", Tier.PAID: "#e69f00", Tier.FREE: "#999999"}
# Fewer refusals per second than this are chance.
_SOME = 0.02


def draw(path: Path, over: Run, half: Run, seconds: int, killed_at_s: float) -> None:
    """Draw answers, refusals and latencies per second and tier; PNG or SVG, by the suffix of the file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text as text, which is much smaller; and the same file for the same figures.
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "bunch"
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    panels = figure.subplots(3, 2, sharex=True, sharey="row", squeeze=False)
    runs = ((over, "150 % of capacity"), (half, "90 %, half of the executors killed"))
    for column, (run, title) in enumerate(runs):
        rates, refused, latencies = (panels[row][column] for row in range(3))
        rates.set_title(title)
        for tier in TIERS:
            _draw_tier(rates, refused, latencies, run, tier, seconds)
        for axes in (rates, refused, latencies):
            axes.grid(alpha=0.3)
            if run is half:
                axes.axvline(killed_at_s, color="#d55e00", linestyle=":", linewidth=1)
        latencies.set(xlabel="seconds", ylim=(0, None))
    for row, label in enumerate(("answers/s", "refused, %", "ms: p50 and p95")):
        panels[row][0].set_ylabel(label)
    panels[0][0].legend(fontsize="small", loc="center right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_tier(rates: Any, refused: Any, latencies: Any, run: Run, tier: Tier, seconds: int) -> None:
    color = _COLORS[tier]
    middles = [second + 0.5 for second in range(seconds)]
    by_second: list[list[float]] = [[] for _ in middles]
    for each in answers_of(run, tier):
        if each.status == 200 and int(came_s(each)) < seconds:
            by_second[int(came_s(each))].append(each.latency_s * 1000)
    rates.plot(middles, [len(each) for each in by_second], color=color, label=tier.value)
    refused.plot(middles, [part * 100 for part in refused_by_second(run, tier, seconds)], color=color)
    for fraction, style in ((0.5, "-"), (0.95, "--")):
        values = [percentile(sorted(each), fraction) for each in by_second]
        latencies.plot(middles, [math.nan if value is None else value for value in values], style, color=color)


def fill(page: Path, rows: Sequence[Row], over_goodput: float, half: Run, seconds: int) -> None:
    """Replace the text between the marks. Raises ValueError: the page has none."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no {_BEGIN} … {_END}")
    block = f"{_table(rows)}\n\n{_words(rows, over_goodput, half, seconds)}\n\n![Overload](images/overload.svg)"
    page.write_text(f"{before}{_BEGIN}\n{block}\n{_END}{after}", encoding="utf-8")


def _table(rows: Sequence[Row]) -> str:
    lines = ["| | tier | offered/s | served | p50 ms | p95 ms | answers |", "|---|---|---|---|---|---|---|"]
    last = ""
    for row in rows:
        codes = ", ".join(f"{code}: {count:,}" for code, count in row.codes.items())
        p50, p95 = (f"{value:.0f}" if value is not None else "–" for value in (row.p50_ms, row.p95_ms))
        name, last = (row.run if row.run != last else ""), row.run
        lines.append(f"| {name} | {row.tier} | {row.offered_rps:.0f} | {row.served:.1%} | {p50} | {p95} | {codes} |")
    return "\n".join(lines)


def _words(rows: Sequence[Row], over_goodput: float, half: Run, seconds: int) -> str:
    alone, loaded = [row.p95_ms or math.nan for row in rows if row.tier == Tier.ENTERPRISE.value][:2]
    said = (
        f"At 150 % the executors did {over_goodput:.0%} of what they can, and the p95 of enterprise was "
        f"{loaded / alone:.2f} times what it is alone."
    )
    refused = [n for n, part in enumerate(refused_by_second(half, Tier.FREE, seconds)) if part > _SOME]
    if refused:
        said += f" With half of the executors gone, free was refused from second {refused[0]} to second {refused[-1]}."
    return said

"""Writes tables into a page between two marks, and the table of the replayed designs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from batching.capacity.designs import Replay

_REST = "objective met | uneven: met | smallest fleet | uneven: smallest | run, s |"


# CPU seconds, by design and policy.
Took: TypeAlias = Mapping[tuple[str, str], float]


def fill(page: Path, replays: Sequence[Replay], took: Took) -> None:
    """Replace the text between the marks.

    Raises:
        ValueError: the page has no marks.
    """
    replace_section(page, "designs", table(replays, took))


def replace_section(page: Path, name: str, text: str) -> None:
    """Replace what stands between the marks `name: begin` and `name: end` of a page.

    Raises:
        ValueError: the page has no such marks.
    """
    opening, closing = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = page.read_text(encoding="utf-8").partition(opening)
    _, end, after = rest.partition(closing)
    if not begin or not end:
        raise ValueError(f"{page} has no {opening} … {closing}")
    page.write_text(f"{before}{opening}\n{text}\n{closing}{after}", encoding="utf-8")


def table(replays: Sequence[Replay], took: Took) -> str:
    lines = []
    for each in replays:
        design = each.design
        percentile = f"p{design.objective.fraction * 100:.0f}"
        attribute = f"{percentile}_ms"
        theory = each.queueing_wait_s * 1000
        lines += [
            f"### {design.name}: {design.what}",
            "",
            f"By its own formula the design needs {each.raw} GPUs, or {each.at_70} at 70 %. It has {design.gpus}; "
            f"their utilisation with full batches is {design.use:.1%}. By Allen and Cunneen, the {percentile} wait "
            "of a full batch for a GPU is " + (f"{theory:.1f} ms." if theory < float("inf") else "unbounded."),
            "",
            f"| policy | {percentile} ms | uneven: {percentile} ms | {_REST}",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, outcome in each.outcomes.items():
            even, uneven = getattr(outcome.even, attribute), getattr(outcome.uneven, attribute)
            lines.append(
                f"| `{name}` | {even:,.0f} | {uneven:,.0f} | {_yes(outcome.holds_even)} | {_yes(outcome.holds_uneven)} "
                f"| {outcome.smallest_even or '–'} | {outcome.smallest_uneven or '–'} | {took[design.name, name]:.1f} |"
            )
        lines.append("")
    requests = sum(report.requests for each in replays for o in each.outcomes.values() for report in (o.even, o.uneven))
    lines.append(
        f"The runs at the designs' own fleets simulated {requests / 1e6:.1f} million requests. Together with the "
        f"search for the smallest fleets they took {sum(took.values()):.0f} s of one core."
    )
    return "\n".join(lines)


def _yes(holds: bool) -> str:
    return "yes" if holds else "**no**"

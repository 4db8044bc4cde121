"""A load of several tiers at once: whose each request is, and how each tier fared."""

from __future__ import annotations

import random
from dataclasses import dataclass

import click

from config.tiers import TIERS, Tier
from workers.cli.base import print_table
from workers.cli.load import Run
from workers.cli.summary import Summary, summarise


@dataclass(frozen=True, slots=True)
class Mix:
    """Tiers and their parts of the load. A request's tier follows from its number alone."""

    parts: dict[Tier, float]

    def tier(self, number: int) -> Tier:
        return random.Random(number).choices(list(self.parts), list(self.parts.values()))[0]

    def headers(self, number: int) -> bytes:
        return b"X-Tier: %b\r\n" % self.tier(number).value.encode()

    def by_tier(self, run: Run, deadline_s: float) -> dict[str, Summary]:
        return {
            tier.value: summarise(
                [answer for answer in run.answers if self.tier(answer.number) is tier], run.elapsed_s, deadline_s
            )
            for tier in TIERS
            if tier in self.parts
        }


def parse_mix(context: click.Context, parameter: click.Parameter, value: str | None) -> Mix | None:
    """Read `free=70,paid=25,enterprise=5`."""
    if value is None:
        return None
    try:
        pairs = [part.split("=") for part in value.split(",")]
        parts = {Tier(name.strip()): float(share) for name, share in pairs}
    except ValueError:
        parts = {}
    if not parts or min(parts.values()) <= 0:
        names = ", ".join(tier.value for tier in TIERS)
        raise click.BadParameter(f"{value!r}: tiers ({names}) with their parts, like free=70,paid=25,enterprise=5")
    return Mix(parts)


def show_tiers(tiers: dict[str, Summary]) -> None:
    if not tiers:
        return
    print_table(
        list(tiers.items()),
        [
            ("tier", lambda row: row[0]),
            ("requests/s", lambda row: row[1].rps),
            ("goodput/s", lambda row: row[1].goodput_rps),
            ("p50 ms", lambda row: "–" if row[1].p50_ms is None else row[1].p50_ms),
            ("p95 ms", lambda row: "–" if row[1].p95_ms is None else row[1].p95_ms),
            ("codes", lambda row: ", ".join(f"{code}: {count:,}" for code, count in row[1].codes.items())),
        ],
        empty="",
    )
    click.echo()

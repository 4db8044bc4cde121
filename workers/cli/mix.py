"""A load of several tiers at once: whose each request is, and how each tier fared."""

from __future__ import annotations

import random
from dataclasses import dataclass

from config.tiers import TIERS, Tier
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

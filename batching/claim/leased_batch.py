"""A batch whose requests are leased in several shards: a lease in each, all under the id of the batch.

positions of the batch   1 … 10 │ 11 … 12 │ 13 … 64
leases                   {s3}   │ {s0}    │ {s7}       positions of a lease count from 1 again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from batching.claim.values import Settled
from batching.coalescing import Finished


@dataclass(slots=True, eq=False)
class LeasedPart:
    """The lease in one shard, of the `count` requests behind position `first`; `size` and `takes` were asked for.

    `settled` are the positions of those that are, while the lease lasts; `ended`: it does not any more.
    """

    shard: int
    size: int
    takes: tuple[int, ...] | None = None
    first: int = 0
    count: int = 0
    settled: set[int] = field(default_factory=set)
    ended: Finished | None = None

    @property
    def positions(self) -> frozenset[int]:
        return frozenset(range(self.first + 1, self.first + self.count + 1))

    def own(self, outcomes: Sequence[Settled]) -> Sequence[Settled]:
        """Those of the outcomes whose requests it has, and that are not settled."""
        first, last, settled = self.first, self.first + self.count, self.settled
        return [each for each in outcomes if first < each.position <= last and each.position not in settled]

    def holds(self, position: int) -> bool:
        """Return whether it has that request, and the request is not settled."""
        return self.first < position <= self.first + self.count and position not in self.settled


@dataclass(slots=True, eq=False)
class LeasedBatch:
    """All of them. `is_rest`: it was split off another batch, whose id its lease has."""

    model: str
    lease_id: str
    parts: list[LeasedPart] = field(default_factory=list)
    is_rest: bool = False

    @property
    def open_parts(self) -> list[LeasedPart]:
        return [part for part in self.parts if part.ended is None]

    def split_off(self, part: LeasedPart) -> LeasedBatch:
        """This part, as a batch of its own."""
        self.parts.remove(part)
        return LeasedBatch(self.model, self.lease_id, [part], is_rest=True)

    def finished(self, now: Mapping[int, Finished]) -> Finished:
        """The outcome of a call for all parts that have ended, or that it has reached `now`, by their shards."""
        found = [(part, now.get(part.shard) or part.ended) for part in self.parts]
        ends = [(part, end) for part, end in found if end is not None]
        taken = [end for _, end in ends if end.taken]
        lost = [part.positions for part, end in ends if not end.taken]
        if not taken:
            return Finished(False)
        return Finished(
            True,
            tuple(row for end in taken for row in end.others),
            tuple(name for end in taken for name in end.refused),
            tuple(name for end in taken for name in end.dropped),
            frozenset().union(*lost),
        )


def shifted(finished: Finished, first: int) -> Finished:
    """The same, with the positions of a part that begins behind `first`."""
    if not (first and finished.others):
        return finished
    rows = (row.split(b";", 1) for row in finished.others)
    others = tuple(b"%d;%b" % (int(position) + first, rest) for position, rest in rows)
    return structs.replace(finished, others=others)

"""Converts the outcomes of a batch to the rows that `lua/finish.lua` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batching.script_args import OutcomeRun

if TYPE_CHECKING:
    from batching.claim.values import Settled


def outcome_rows(outcomes: Sequence[Settled], channels: Mapping[str, int], first: int = 0) -> list[Any]:
    """Runs of outcomes: fields that neighbours in the lease have in common are sent once, as an `OutcomeRun`.

    Args:
        channels: the number of each reply channel, from 1.
        first: the place in the batch in front of the lease, from which positions count.
    """
    words: list[Any] = []
    run: tuple[Any, ...] = ()
    position = count_at = 0
    for each in outcomes:
        shared = (
            each.ttl_ms,
            channels.get(each.reply_to, 0),
            each.dead_letter,
            2 if each.foreign else int(each.announce),
            2 if each.asked is None else 3,
        )
        if shared != run or each.position - first != position:
            run, position = shared, each.position - first
            count_at = len(words) + len(run) + 1
            words += OutcomeRun(*run, position=position, outcomes=0)
        position += 1
        words[count_at] += 1
        # These are `OutcomeWords`; no tuple is made for each, to save time.
        words += (each.task_id, each.result)
        if each.asked is not None:
            words.append(each.asked.row())
    return words

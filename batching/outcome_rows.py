"""Converts the outcomes of a batch to the rows that `lua/finish.lua` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from batching.claim.values import Settled
from batching.coalescing import Coalesced
from batching.script_args import OutcomeRun
from config.native import hot_path


class OutcomeRows(NamedTuple):
    """`channels` has the number of each reply channel, from 1; `asked` is the first that is something to others."""

    channels: Mapping[str, int]
    words: list[Any]
    asked: Coalesced | None = None


def outcome_rows(outcomes: Sequence[Settled], first: int = 0) -> OutcomeRows:
    """Runs of outcomes: fields that neighbours in the lease have in common are sent once, as an `OutcomeRun`.

    Args:
        first: the place in the batch in front of the lease, from which positions count.
    """
    if _outcome_words is not None and (found := _outcome_words(outcomes, Settled, first)) is not None:
        return OutcomeRows(*found)
    channels = {reply_to: i for i, reply_to in enumerate(dict.fromkeys(o.reply_to for o in outcomes if o.reply_to), 1)}
    asked = next((each.asked for each in outcomes if each.asked is not None), None)
    return OutcomeRows(channels, _words(outcomes, channels, first), asked)


# The same in C, where nothing is asked; None where it was not compiled.
_outcome_words: Callable[..., tuple[dict[str, int], list[Any]] | None] | None = (
    hot_path.outcome_words if hot_path is not None else None
)


def _words(outcomes: Sequence[Settled], channels: Mapping[str, int], first: int) -> list[Any]:
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

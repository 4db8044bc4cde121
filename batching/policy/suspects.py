"""Finding the request that kills executors, without failing those that were beside it.

A dead executor tells nothing about which of its batch's members it died of, so all of them are suspects. They are tried
again among themselves, in batches that shrink with each loss, the last time alone: then a death convicts.
"""

from __future__ import annotations


def suspect_sizes(max_batch_size: int, max_attempts: int) -> tuple[int, ...]:
    """The size of a batch of suspects after 1, 2, … losses; the last one is 1.

    The sizes fall geometrically, so that a culprit costs about as many executors as it has attempts, and each round
    clears as large a share of its neighbours as the next. With `max_attempts` 3 and a batch of 64: 8, then 1.
    """
    rounds = max(1, max_attempts - 1)
    return tuple(max(1, round(max_batch_size ** ((rounds - lost) / rounds))) for lost in range(1, rounds + 1))

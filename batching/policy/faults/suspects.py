"""Finds the request that kills executors, without failing its neighbours.

The death of an executor does not tell which request of the batch was the cause, so all of them are suspects. They are
tried again among themselves, in batches that shrink with each loss, the last time alone: then a death convicts.

A process that reports its own failure (`workers.executor.faults.health`) convicts the first suspect that it had alone.
The members of its batch count as lost so often that they are alone the next time.
"""

from __future__ import annotations


def suspect_sizes(max_batch_size: int, max_attempts: int) -> tuple[int, ...]:
    """The size of a batch of suspects after 1, 2, … losses; the last one is 1.

    The sizes fall geometrically, so that a culprit costs about as many executors as it has attempts, and each round
    clears as large a share of its neighbours as the next. With `max_attempts` 3 and a batch of 64: 8, then 1.
    """
    last = rounds(max_attempts)
    return tuple(max(1, round(max_batch_size ** ((last - lost) / last))) for lost in range(1, last + 1))


def rounds(max_attempts: int) -> int:
    """The number of losses after which a request runs alone. With `max_attempts` 1 there is one more try, alone: its
    neighbours must not fail for it.
    """
    return max(1, max_attempts - 1)

"""One field of all requests of a batch, for `map`: every batch pays for these, so there is no loop in Python."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter

from batching.request import Outcome, Request

attempt_of, parameters_of, traceparent_of = attrgetter("attempt"), attrgetter("parameters"), attrgetter("traceparent")
input_of, blob_of, canvas_of = attrgetter("input"), attrgetter("blob"), attrgetter("canvas")
is_tracked = attrgetter("tracked")
request_of, outcome_of = itemgetter(0), itemgetter(1)


def kinds_of(outcomes: Sequence[tuple[Request, Outcome]]) -> set[type]:
    """The classes of the outcomes. None of them has a subclass."""
    return set(map(type, map(outcome_of, outcomes)))

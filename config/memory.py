"""The garbage collector, told what kind of program this is."""

from __future__ import annotations

import gc

# CPython's default of 700 new containers is a collection every few requests, and now and then one that walks every
# object of the process in the middle of somebody's answer.
YOUNG_OBJECTS = 50_000


def settle_heap() -> None:
    """Call once a process has loaded and built all that stays: that is never walked again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)

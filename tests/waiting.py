"""Waiting, in a test, for something to come true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

# Far more than anything here takes: it turns a hang into a failure.
PATIENCE_S = 240.0
# Between two looks: short at first, and soon as long as one that costs its server something may be repeated.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.005, 0.05

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found], what: str | Callable[[], object] = "", *, patience_s: float = PATIENCE_S
) -> Found:
    """What `condition` returned, as soon as that is true.

    `what` says what is waited for; or is asked, once it has not come, for what there is to see. Under gevent's patched
    `time` other greenlets run meanwhile.

    Raises:
        AssertionError: it did not come true within `patience_s`.
    """
    deadline, pause_s = time.monotonic() + patience_s, _FIRST_PAUSE_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {patience_s:g} s: {what() if callable(what) else what or _place(condition)}"
            )
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LAST_PAUSE_S)
    return found


def _place(condition: Callable[[], object]) -> str:
    """Where a condition without a name stands, which no traceback of the waiting shows."""
    code = getattr(condition, "__code__", None)
    return f"the condition of {code.co_filename}:{code.co_firstlineno}" if code else repr(condition)

"""Waits, in a test, until something becomes true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

# Much longer than anything here takes: it turns a hang into a failure.
PATIENCE_S = 240.0
# Time between two checks: short at first, then long enough for a check that costs its server something.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.005, 0.05

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found], what: str | Callable[[], object] = "", *, patience_s: float = PATIENCE_S
) -> Found:
    """The value of `condition`, as soon as it is true.

    `what` describes the condition; or is called after a timeout for a description of the state. Under gevent's patched
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
    """The source line of a condition without a name, which no traceback of the wait shows."""
    code = getattr(condition, "__code__", None)
    return f"the condition of {code.co_filename}:{code.co_firstlineno}" if code else repr(condition)

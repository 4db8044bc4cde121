"""Several calls at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


def in_parallel(calls: Sequence[Callable[[], None]]) -> None:
    """Make each call in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

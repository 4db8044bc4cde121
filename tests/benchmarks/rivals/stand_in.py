"""The two models that every system under test serves: the same work, so that only the serving differs.

`noop` echoes its inputs at once: what is left is the cost of the serving itself.
`50ms` takes 50 ms for a batch of up to 64 whatever its size, as a GPU does when it is not full.
"""

from __future__ import annotations

import os
import threading
import time

MAX_BATCH_SIZE = 64

# The longest time that a batcher may hold a request back to fill its batch, for the rivals with such a setting: long
# enough to fill, short compared with a model of tens of milliseconds. Exceptions are explained in the rival's folder.
MAX_QUEUE_DELAY_MS = 5

_BATCH_SECONDS = {"noop": 0.0, "50ms": 0.05}


class StandIn:
    """Echo; one batch at a time, as one GPU would."""

    def __init__(self, model: str) -> None:
        self.batch_s = _BATCH_SECONDS[model]
        self._busy = threading.Lock()

    def predict(self, inputs: list[str]) -> list[str]:
        """One output per input, in order. Raises `ValueError` for a batch over the maximum."""
        if len(inputs) > MAX_BATCH_SIZE:
            raise ValueError(f"a batch of {len(inputs)} is over the maximum of {MAX_BATCH_SIZE}")
        if self.batch_s:
            # sleep() releases the GIL, as a call into a GPU's driver does.
            with self._busy:
                time.sleep(self.batch_s)
        return list(inputs)


def load() -> StandIn:
    """The model that the benchmark selected (`BENCH_MODEL`)."""
    return StandIn(os.environ["BENCH_MODEL"])


def port() -> int:
    """The port that the benchmark chose (`BENCH_PORT`)."""
    return int(os.environ["BENCH_PORT"])

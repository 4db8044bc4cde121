"""What is left of batches some of whose shards do not answer: settled as soon as they do, while others go on.

settler ──PlacesAway──▶ rest: positions of the batch, its own id, a thread ──the same calls, in order──▶ its lease
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Rest:
    batch_id: str
    positions: frozenset[int]
    calls: queue.SimpleQueue[tuple[Callable[[], None], bool]] = field(default_factory=queue.SimpleQueue)
    is_served: bool = False


class Rests:
    """Those of one settler. Its two threads use it for different batches."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, _Rest]] = {}
        self._open: dict[str, _Rest] = {}

    @property
    def batches(self) -> frozenset[str]:
        """The batches of which something is left."""
        return frozenset(rest.batch_id for rest in list(self._open.values()))

    def add(self, batch_id: str, rests: Mapping[str, frozenset[int]]) -> None:
        for rest_id, positions in rests.items():
            self._open[rest_id] = self._of.setdefault(batch_id, {})[rest_id] = _Rest(batch_id, positions)

    def of(self, batch_id: str) -> Mapping[str, frozenset[int]]:
        """The rests of a batch: their positions by their ids."""
        rests = self._of.get(batch_id)
        return {rest_id: rest.positions for rest_id, rest in rests.items()} if rests else {}

    def positions(self, batch_id: str) -> frozenset[int]:
        return frozenset().union(*self.of(batch_id).values())

    def put(self, rest_id: str, call: Callable[[], None], *, last: bool) -> None:
        """Make a call for a rest, behind those that were put before."""
        rest = self._open[rest_id]
        rest.calls.put((call, last))
        if not rest.is_served:
            rest.is_served = True
            threading.Thread(target=self._serve, args=(rest_id, rest), name=f"settle {rest_id}", daemon=True).start()

    def forget(self, batch_id: str) -> None:
        """The batch needs no more calls than were put."""
        self._of.pop(batch_id, None)

    def _serve(self, rest_id: str, rest: _Rest) -> None:
        last = False
        while not last:
            call, last = rest.calls.get()
            try:
                call()
            except Exception:
                # Whatever is not settled is found as a stray lease.
                logger.exception("could not settle what was left of batch %s", rest.batch_id)
        self._open.pop(rest_id, None)

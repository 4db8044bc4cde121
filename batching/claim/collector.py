"""The collecting half of a claim loop: what becomes of the batches that the executor has.

See `batching.claim.loop` for the other half, and for the errors of each arrow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from batching.claim.in_hand import Hands, InHand
from batching.claim.loop_state import TICK_S, LoopState
from batching.claim.settler import Settler
from batching.claim.shared_breaker import SharedBreaker
from batching.claim.store import Blame
from batching.executor import Executor, Lost
from batching.policy import BreakerState
from batching.request import Done, Failed

logger = logging.getLogger(__name__)

_IDLE_TICK_S = 5.0


class Collector:
    """Takes the events of one executor, in a thread of its own (`run`)."""

    def __init__(
        self,
        executor: Executor,
        hands: Hands,
        state: LoopState[InHand],
        settler: Settler,
        breaker: SharedBreaker,
        clock: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._hands = hands
        self._state = state
        self._settler = settler
        self._breaker = breaker
        self._clock = clock
        self._ends = False

    def end(self) -> None:
        """Return from `run` once nothing more can be collected."""
        self._ends = True
        self._executor.interrupt()

    def run(self) -> None:
        in_hand = self._state.in_hand
        while in_hand or not self._ends:
            try:
                event = self._executor.receive(TICK_S if in_hand else _IDLE_TICK_S)
                if isinstance(event, Done):
                    self._done(event)
                elif isinstance(event, Lost):
                    self._lost(event)
                elif self._ends:
                    return
            except Exception:
                # An error must not end the only thread that answers the batches in hand.
                logger.exception(
                    "%s: the collector failed on an executor event; it goes on with the next", self._executor.name
                )

    def _done(self, event: Done) -> None:
        # Before the batch leaves the hands: from then on the feeder may claim the next.
        self._heed_memory(event)
        ok = set(map(type, event.outcomes)) != {Failed}
        finished = self._hands.finished(event, ok=ok)
        if finished is None:
            return
        batch, now = finished
        # A single input that fails says little about the model, unless it was the probe.
        if ok or len(event.outcomes) > 1 or self._breaker.state is BreakerState.HALF_OPEN:
            self._breaker.record(now, ok=ok)
        try:
            outcomes = list(zip(batch.requests, event.outcomes, strict=True))
            self._settler.settle(outcomes, batch.info, last=True, elapsed_s=now - batch.claimed_at)
        except Exception as error:
            logger.exception(
                "%s: could not settle batch %s; its requests are given back", self._executor.name, event.batch_id
            )
            self._settler.give_back(batch.requests, batch.info, Blame.SUSPECT, repr(error))
        finally:
            self._hands.leased.discard(event.batch_id)

    def _heed_memory(self, event: Done) -> None:
        if event.safe_size is not None:
            safe_size = self._state.ran_out(event.safe_size, len(event.outcomes), self._clock())
            logger.warning(
                "%s: out of memory; batches have at most %d requests from now on", self._executor.name, safe_size
            )
        elif self._state.safe_size is not None and self._state.had_room(len(event.outcomes), self._clock()):
            most = self._state.safe_size
            logger.info(
                "%s: %s are tried again", self._executor.name, f"batches of {most}" if most else "whole batches"
            )

    def _lost(self, event: Lost) -> None:
        self._hands.rest()
        if event.inside:
            self._breaker.record(self._clock(), ok=False)
        # Each goes to the head of the queue, so the oldest is the last.
        for batch_id in (*event.waiting[::-1], *event.beside[::-1], event.inside):
            batch = self._hands.take(batch_id) if batch_id else None
            if batch is None:
                continue
            with self._hands.settling(batch.info.batch_id):
                if batch_id == event.inside or batch_id in event.beside:
                    self._settler.lost(batch.requests, batch.info, event)
                else:
                    self._settler.give_back(batch.requests, batch.info, Blame.NOTHING, event.reason)

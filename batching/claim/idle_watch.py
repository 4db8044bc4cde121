"""One shared wait for all claim loops of a worker that have had no work for a while.

    loop ──join──▶ still at its own bell ──next round──▶ held ──a ring, or something seen──▶ at its own bell again
                                                          │
              watch: BLPOP over the bells of all held; one `peek` over their queues when Redis says that one of them
                     has changed, and every TOLD_LOOK_EVERY_S. If Redis cannot say so: every LOOK_EVERY_S

A loop with work waits by itself, since a hand-over between threads costs a lone caller a tenth of a millisecond. Thirty
idle models that wait by themselves would ask Redis 360 times a second; held here, they ask four times together.

No ring is lost. A loop stays at its own bell until the watch holds it. When the watch draws a token for a model whose
loops have all left, it returns the token to the bell, where another worker may wait.

When Redis is away, only the watch tries again, and logs it once. The loops stay held: they have nothing to do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from redis.exceptions import RedisError

from batching.claim.loop_state import LOOK_EVERY_S
from batching.claim.store import BatchStore

logger = logging.getLogger(__name__)

# A loop without work for this long is held. Longer than the pause of a client that sends once a second.
COLD_AFTER_S = 2.0
# Whoever a ring has woken claims what was announced with it within this time.
_RING_FIRST_S = 0.005
# A queue that keeps changing without work for anybody, such as one of a paused tier, is not followed for so many looks.
_NOT_FOLLOWED = 8
# What the looks cost is most of what an idle worker costs. They are needed for pauses that end, and in case an
# announcement is lost.
TOLD_LOOK_EVERY_S = 0.25
_MAX_BACKOFF_S = 1.0


class Seat:
    """The place of one claim loop in a watch. The watch creates it; its methods are for the loop's feeder alone."""

    def __init__(self, watch: IdleWatch, model: str, changed: threading.Condition) -> None:
        self.model = model
        self.paused: AbstractSet[int] = frozenset()
        # When the loop last saw work, on the watch's clock.
        self.empty_at = 0.0
        self._watch = watch
        # The loop's condition: whatever ends its wait notifies it.
        self._changed = changed
        self._joined = False
        self._held = False
        self.resting = False
        self._worked_at = watch.clock()

    def worked(self) -> None:
        """The loop has work: it waits by itself for a while."""
        self._worked_at = self._watch.clock()
        if self._joined:
            self._leave()

    def rest(self, paused: AbstractSet[int], leave_if: Callable[[], bool]) -> bool:
        """Wait here if the loop has had no work for a while; returns whether it did.

        Blocks until something waits in one of its queues that are not `paused`, or until the loop's condition is
        notified and `leave_if` holds. Returns False at once when the loop should wait by itself. Raises RedisError.
        """
        if self._watch.clock() - self._worked_at < COLD_AFTER_S:
            return False
        if not self._held:
            self.paused = paused
            self._joined = True
            self._watch.join(self)
            return False
        # Otherwise a token could answer an open BLPOP of the loop that nobody reads any more.
        self._watch.store.leave_bell()
        with self._changed:
            self.resting = True
            self._changed.wait_for(lambda: not self._held or leave_if())
            self.resting = False
        self._leave()
        return True

    def hold(self, now: float) -> None:
        """Called by the watch."""
        with self._changed:
            self._held = True
            self.empty_at = now

    def let_go(self) -> None:
        """Called by the watch."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def _leave(self) -> None:
        self._joined = False
        self._watch.leave(self)


class IdleWatch:
    """The watch of one worker. Constructing builds; `start` starts the thread."""

    def __init__(self, store: BatchStore, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.clock = clock
        self._changed = threading.Condition()
        self._joining: list[Seat] = []
        # The loop that has been held longest is first, and is woken first.
        self._held: list[Seat] = []
        self._stopping = False
        self._looked_at = 0.0
        self._not_followed = 0
        self._thread = threading.Thread(target=self._run, name="idle watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def seat(self, model: str, changed: threading.Condition) -> Seat:
        return Seat(self, model, changed)

    @property
    def held(self) -> int:
        """The number of loops that wait here."""
        return len(self._held)

    def holds(self, model: str) -> bool:
        """Return whether a loop of the model waits here."""
        with self._changed:
            return any(seat.model == model for seat in self._held)

    def join(self, seat: Seat) -> None:
        """Hold this seat from the next round on; until then its loop waits by itself."""
        with self._changed:
            if seat not in self._joining and seat not in self._held:
                self._joining.append(seat)
                self._changed.notify_all()

    def leave(self, seat: Seat) -> None:
        """The loop waits by itself again; safe to call at any time."""
        with self._changed:
            for seats in (self._joining, self._held):
                if seat in seats:
                    seats.remove(seat)
            seat.let_go()

    def _run(self) -> None:
        backoff_s = 0.0
        while not self._stopping:
            try:
                self._round()
                backoff_s = 0.0
            except RedisError as error:
                if not backoff_s:
                    logger.warning(
                        "idle models: cannot reach Redis (%s); their requests wait until it answers",
                        error,
                    )
                backoff_s = min(_MAX_BACKOFF_S, backoff_s * 2 or 0.05)
                self._pause(backoff_s)
            except Exception:
                # All idle models depend on this one thread.
                logger.exception("idle models: the watch failed; trying again")
                self._pause(_MAX_BACKOFF_S)

    def _round(self) -> None:
        models = self._gather()
        if not models:
            return
        told = self.store.is_told and not self._not_followed
        every_s = TOLD_LOOK_EVERY_S if told else LOOK_EVERY_S
        began = self.clock()
        rung = (self.store.wait_for_changes if told else self.store.wait_for_bells)(models, every_s)
        if rung is not None and not self._wake_one(rung):
            self.store.ring(rung)
        if rung is not None and self.clock() - self._looked_at < every_s:
            return
        was_announced = told and rung is None and self.clock() - began < every_s / 2
        if was_announced:
            self._pause(_RING_FIRST_S)
        found = self._look()
        if was_announced and not found:
            self._not_followed = _NOT_FOLLOWED
        elif self._not_followed:
            self._not_followed -= 1

    def _gather(self) -> list[str]:
        """Hold the loops that have joined, and return the models to wait for. Blocks while there are none."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._held or self._joining)
            joined, self._joining = self._joining, []
            self._held += joined
            for seat in joined:
                seat.hold(self.clock())
        if joined:
            # Nothing is announced of a queue before it has been looked at.
            self._look()
        with self._changed:
            return list(dict.fromkeys(seat.model for seat in self._held))

    def _look(self) -> bool:
        """Wake the loops for whose models something waits; returns whether there were any. Raises RedisError."""
        with self._changed:
            paused = {seat.model: seat.paused for seat in self._held}
        if not paused:
            return False
        waiting = self.store.peek(paused)
        self._looked_at = self.clock()
        with self._changed:
            found = [seat for seat in self._held if seat.model in waiting]
            self._held = [seat for seat in self._held if seat.model not in waiting]
            for seat in self._held:
                seat.empty_at = self._looked_at
        _let_go(found)
        return bool(found)

    def _wake_one(self, model: str) -> bool:
        """Wake one of the model's loops; returns whether there was one. One token is for one loop.

        Loops that are held but not waiting here (they are still at their own bell, or busy) look again by themselves,
        so they cannot miss this token.
        """
        with self._changed:
            mine = [seat for seat in self._held if seat.model == model]
            resting = [seat for seat in mine if seat.resting][:1]
            found = resting or mine
            self._held = [seat for seat in self._held if seat not in found]
        _let_go(found)
        return bool(resting)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, timeout=seconds)


def _let_go(seats: Iterable[Seat]) -> None:
    for seat in seats:
        seat.let_go()

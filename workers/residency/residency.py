"""Keeps the models in memory that `batching.policy.residency` says, in one worker.

    IdleWatch: something waits for an unloaded model ─┐
    executors: ready, failed, gone ───────────────────┼──▶ one thread: notice ─▶ plan ─▶ load, drain, unload
    its own plan: a minimum residence ends ───────────┘

A model that is not loaded has a seat in the worker's `IdleWatch`, as idle models have. Only while something waits for
a model that has no room yet, its queue is looked at, a dozen times a second.

When Redis is away nothing new is loaded, and what is loaded stays.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from redis.exceptions import RedisError

from batching.claim.loop_state import LOOK_EVERY_S
from batching.claim.store import BatchStore
from batching.policy.residency import Stage, Tenant, plan, ready_in_s
from workers.residency.member import Member

logger = logging.getLogger(__name__)

# A pause of a tier is seen within this time.
_TICK_S = 1.0
_BATCH_TICK_S = 0.01


class Residency:
    """The on-demand models of one worker. Constructing builds; `start` starts the thread, if there are any.

    Args:
        room: the limits (`config.model_files.room`).
        store: where requests wait.
        elsewhere: whether another worker has the model loaded; it may raise RedisError.
        is_open: whether this worker claims at all: it does not while it drains.
    """

    def __init__(
        self,
        room: Mapping[str, float],
        store: BatchStore,
        elsewhere: Callable[[str], bool],
        is_open: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members: dict[str, Member] = {}
        self._room = room
        self._store = store
        self._elsewhere = elsewhere
        self._is_open = is_open
        self._clock = clock
        self._changed = threading.Condition()
        self._news = self._stopping = False
        self._tenants: Sequence[Tenant] = ()
        self._thread = threading.Thread(target=self._run, name="residency", daemon=True)

    def start(self) -> None:
        if self.members:
            self._thread.start()

    def stop(self) -> None:
        """Load and unload nothing more. Safe to call twice."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def wake(self) -> None:
        """Something has changed: look now. Called by any thread."""
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def want(self, model: str) -> bool:
        """Load the model as if a request waited; returns whether it is one of these."""
        member = self.members.get(model)
        if member is not None:
            member.want(self._clock())
            self.wake()
        return member is not None

    def dismiss(self, model: str) -> bool:
        """Unload the model when its batches are finished, until requests wait for it again; returns whether it is one
        of these.
        """
        member = self.members.get(model)
        if member is not None and member.stage in {Stage.LOADING, Stage.RESIDENT}:
            member.dismiss()
            self.wake()
        return member is not None

    def ready_in_s(self, model: str) -> float | None:
        """The time until a request of now would be answered, apart from its own batch; None: it is not known."""
        tenants = self._tenants
        seconds = ready_in_s(tenants, self._room, model, self._clock()) if tenants else None
        return None if seconds is None else seconds + self.members[model].drain_s

    @property
    def without_seat(self) -> int:
        """The number of loops that wait nowhere, as their model is not loaded; less the seats of these models."""
        return sum(each.loops - each.seat.is_taken for each in self.members.values() if each.stage is Stage.UNLOADED)

    @property
    def unloaded(self) -> list[str]:
        return [name for name, each in self.members.items() if each.stage is Stage.UNLOADED]

    def _run(self) -> None:
        is_away = False
        while not self._stopping:
            wait_s = _TICK_S
            try:
                wait_s = self.round()
                is_away = False
            except RedisError as error:
                if not is_away:
                    logger.warning("on-demand models: cannot reach Redis (%s); none is loaded until it answers", error)
                is_away = True
            except Exception:
                # All on-demand models depend on this one thread.
                logger.exception("on-demand models: a step failed; trying again")
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._news, timeout=wait_s)
                self._news = False

    def round(self) -> float:
        """Look and act once; returns the seconds until the next time, if nothing wakes it before. Raises RedisError."""
        now = self._clock()
        for each in self.members.values():
            each.notice(now)
        for each in self.members.values():
            if each.stage is Stage.UNLOADED:
                each.forgive(now)
                self._look(each, now)
        self._tenants = tenants = [each.tenant(now) for each in self.members.values()]
        if not self._is_open():
            return _TICK_S
        steps = plan(tenants, self._room, now)
        for name in steps.unload:
            self.members[name].unload()
        for name in steps.drain:
            logger.info("%s: its room is needed; it is unloaded", name)
            self.members[name].drain()
        for name in steps.load:
            logger.info("%s: requests wait for it; it is loaded", name)
            self.members[name].load(now)
        if steps.unload or steps.drain or steps.load:
            return 0.0
        return self._until(steps.look_at, now)

    def _look(self, member: Member, now: float) -> None:
        seat = member.seat
        if seat.is_taken and seat.paused == member.paused:
            return
        if seat.is_taken:
            seat.rise()
        view = self._store.look(member.name, member.paused)
        member.looked(view, now, elsewhere=view.depth > 0 and self._elsewhere(member.name))
        if not view.depth:
            # Whatever comes between the look and the watch's own is seen by that.
            seat.sit(member.paused)

    def _until(self, look_at: float, now: float) -> float:
        if any(each.stage is Stage.DRAINING for each in self.members.values()):
            return _BATCH_TICK_S
        waits = any(each.depth for each in self.members.values() if each.stage is Stage.UNLOADED)
        return min(LOOK_EVERY_S if waits else _TICK_S, max(0.0, look_at - now))

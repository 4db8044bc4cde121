"""One model that is loaded on demand, in one worker: its executors, its loops, and what is known of it.

plan ──load, drain, unload──▶ Member ──▶ executors: a process or none · loops: claiming or away
queue, executors ──notice───▶ Member ──tenant──▶ plan
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from threading import Condition

from batching.claim.idle_watch import IdleWatch, Seat
from batching.claim.loop import ClaimLoop
from batching.claim.store import View
from batching.executor import ExecutorState
from batching.policy.residency import Demand, Stage, Tenant, backoff_s, learnt_load_s
from config.schema import ModelSettings
from workers.executor.on_demand import OnDemandExecutor

_READY = ExecutorState.READY


class UnloadedSeat(Seat):
    """The seat of a model that is not loaded: it costs what an idle model costs (`batching.claim.idle_watch`)."""

    def __init__(self, watch: IdleWatch, model: str, on_work: Callable[[], None]) -> None:
        super().__init__(watch, model, Condition())
        self.is_taken = False
        self._on_work = on_work
        # A token for it need not go back to the bell: a loaded model looks at its queue anyway.
        self.resting = True

    def sit(self, paused: AbstractSet[int]) -> None:
        """Be held until something waits that is not `paused`; then `on_work` is called, with locks of the watch."""
        self.paused, self.is_taken = paused, True
        self._watch.join(self)

    def rise(self) -> None:
        self._watch.leave(self)

    def let_go(self) -> None:
        super().let_go()
        self.is_taken = False
        self._on_work()


class Member:
    """One model. For the residency thread alone, apart from `dismiss`, `want`, and reading."""

    def __init__(
        self,
        model: ModelSettings,
        needs: Mapping[str, float],
        pairs: Sequence[tuple[ClaimLoop, OnDemandExecutor]],
        seat: UnloadedSeat,
    ) -> None:
        self.name, self.needs, self.seat = model.name, needs, seat
        self._max_batch_size = model.max_batch_size
        self.stage = Stage.UNLOADED
        self.loads = 0
        # Learnt; 0: not yet.
        self.load_s = 0.0
        # Waiting requests, as of the last look while it was not loaded.
        self.depth = 0
        self.oldest_at = math.inf
        self.loops = len(pairs)
        self._loops = [loop for loop, _ in pairs]
        self._executors = [executor for _, executor in pairs]
        self._since = -math.inf
        # Since its load has ended; infinite before.
        self._resident_at = math.inf
        self._is_in = self._drains = self._dismissed = False
        self._began_at: float | None = None
        self._failures = 0
        self._not_before = -math.inf
        # Not before, as another worker has it loaded and may keep up.
        self._left_to_others_until = -math.inf
        self._wanted_at = self._due_at = math.inf
        self._demand = Demand()
        self._counted = 0
        for loop in self._loops:
            loop.gate.leave()

    @property
    def paused(self) -> frozenset[int]:
        return self._loops[0].gate.paused

    @property
    def drain_s(self) -> float:
        """The time that what waits needs once it is loaded; 0 while its rate is not known."""
        paces = [loop.state.pace for loop in self._loops]
        rate = sum(pace.rate(self._max_batch_size) for pace in paces if pace.known)
        return self.depth / rate if rate else 0.0

    def retry_in_ms(self, now: float) -> int | None:
        """The time until a load that failed is tried again; None: none has."""
        return max(0, round((self._not_before - now) * 1000)) if self._failures else None

    def want(self, now: float) -> None:
        """Load it as if a request of now waited."""
        if self.stage not in {Stage.LOADING, Stage.RESIDENT}:
            self._wanted_at = min(self._wanted_at, now)
        self._dismissed = False

    def dismiss(self) -> None:
        """Unload it as soon as its batches are finished."""
        self._dismissed = True

    def notice(self, now: float) -> None:
        """See what its executors have done meanwhile."""
        requests = sum(each.requests for each in self._executors)
        if requests > self._counted:
            self._demand = self._demand.seen(requests - self._counted, now)
            self._counted = requests
        # By what takes room, as a reload may have taken the failed state away meanwhile.
        failed = [each for each in self._executors if each.is_out]
        if self._is_in and len(failed) == len(self._executors):
            self._fail(now)
        elif self._is_in and failed and now >= self._not_before:
            # The others serve.
            self._pause(now)
            for each in failed:
                each.load()
        stage = self._seen_stage()
        if stage is self.stage:
            return
        self.stage, self._since = stage, now
        if stage is Stage.RESIDENT:
            # A replaced process begins no new residence: a model whose processes die again and again must leave, too.
            self._since = self._resident_at = min(self._resident_at, now)
            self._failures, self._not_before = 0, -math.inf
            if self._began_at is not None:
                self.load_s, self._began_at = learnt_load_s(self.load_s, now - self._began_at), None

    def looked(self, view: View, now: float, *, elsewhere: bool) -> None:
        """The requests that wait for it, while it is not loaded. `elsewhere`: another worker has it loaded."""
        self.depth = view.depth
        if not view.depth:
            self.oldest_at = self._due_at = math.inf
            return
        age_s = (view.now_ms - view.oldest_ms) / 1000 if view.oldest_ms else 0.0
        self.oldest_at = now - age_s
        self._due_at = now + (view.due_ms - view.now_ms) / 1000 if view.due_ms else math.inf
        # If those who have it keep up, nothing waits for as long as the load would take.
        self._left_to_others_until = self.oldest_at + max(self.load_s, 1.0) if elsewhere else -math.inf

    def forgive(self, now: float) -> None:
        """After a load that failed, and the pause: requests for it are let in again."""
        if self._failures and self.stage is Stage.UNLOADED and now >= self._not_before:
            for each in self._executors:
                each.unload()

    def tenant(self, now: float) -> Tenant:
        """The model as the plan sees it."""
        out = self.stage is Stage.UNLOADED
        used_at = max(each.used_at for each in self._executors)
        return Tenant(
            self.name,
            self.needs,
            self.stage,
            self._since,
            min(self.oldest_at if out else self._behind(used_at), self._wanted_at if out else math.inf),
            self._busy,
            used_at,
            self._demand.lately(now),
            self.load_s,
            max(self._not_before, self._left_to_others_until),
            self._dismissed,
            self._due_at if out else math.inf,
        )

    def load(self, now: float) -> None:
        self.loads += 1
        self._is_in, self._began_at, self._wanted_at = True, now, math.inf
        self._resident_at = math.inf
        self._dismissed = False
        self.seat.rise()
        for executor in self._executors:
            executor.load()
        for loop in self._loops:
            loop.gate.come_back()

    def drain(self) -> None:
        """Claim nothing more."""
        self._drains = True
        for loop in self._loops:
            loop.gate.leave()

    def unload(self) -> None:
        self._is_in = self._drains = self._dismissed = False
        self.oldest_at, self.depth = math.inf, 0
        for executor in self._executors:
            executor.unload()

    @property
    def _busy(self) -> bool:
        # At rest, a claim that was under way has become a batch in hand.
        return any(loop.in_hand or (self._drains and not loop.gate.resting) for loop in self._loops)

    def _behind(self, used_at: float) -> float:
        """Since when requests wait while it is loaded: its loops know only whether some do."""
        return used_at if any(loop.state.more_waits for loop in self._loops) else math.inf

    def _seen_stage(self) -> Stage:
        if not self._is_in:
            return Stage.UNLOADED if all(each.is_out for each in self._executors) else Stage.LEAVING
        if self._drains:
            return Stage.DRAINING
        return Stage.RESIDENT if any(each.state is _READY for each in self._executors) else Stage.LOADING

    def _fail(self, now: float) -> None:
        self._pause(now)
        self._is_in = self._drains = False
        self._began_at = None
        for loop in self._loops:
            loop.gate.leave()

    def _pause(self, now: float) -> None:
        self._failures += 1
        self._not_before = now + backoff_s(self._failures)

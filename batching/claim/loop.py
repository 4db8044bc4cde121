"""The claim loop of one executor: two threads around a pipe.

    queues ──look, claim──▶ feeder ──send──▶ executor ──receive──▶ collector ──finish──▶ results, replies
                              ▲                                        │
                              └───────────── in hand, free at ─────────┘

The feeder asks the policy and claims; the collector stores outcomes. So a batch is being stored while the next one
computes, and the executor never waits for Redis. At most two batches are in hand: one inside the model, one behind it.

Errors by arrow. Redis is away on look or claim: the feeder backs off and looks again. On finish: the collector keeps
the outcomes and tries until they are stored. On send: the batch is given back, uncounted. The executor dies: the batch
inside is given back with an attempt counted, the batch behind it without.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence

from redis.exceptions import RedisError

from batching.claim.claim_switch import ClaimSwitch
from batching.claim.collector import Collector
from batching.claim.idle_watch import IdleWatch
from batching.claim.in_hand import Hands, InHand
from batching.claim.loop_state import TICK_S, LoopState, Pause, Until, Waiting
from batching.claim.payloads import Inputs, Payloads
from batching.claim.settler import Settler
from batching.claim.shared_breaker import SharedBreaker
from batching.claim.store import BatchStore, Blame, Claim, View
from batching.claim.triage import Triage
from batching.columns import attempt_of, parameters_of, traceparent_of
from batching.executor import Executor, ExecutorGone, ExecutorState
from batching.policy import BreakerState, Decision, Dispatch, Look, Policy, Reason, RetryPolicy, Wait
from batching.ports import BatchInfo, Codec, FollowUp, LoopModel, NoFollowUp, Observer
from batching.request import Request, Work

logger = logging.getLogger(__name__)

_MAX_BACKOFF_S = 1.0
_NO_LOOK = Look()


class ClaimLoop:
    """Feeds one executor of one model until stopped. Constructing builds; `start` starts the threads."""

    def __init__(
        self,
        model: LoopModel,
        executor: Executor,
        store: BatchStore,
        policy: Policy,
        codec: Codec,
        observer: Observer,
        *,
        batch_prefix: str,
        revoked: Collection[str] = frozenset(),
        breaker: SharedBreaker | None = None,
        follow_up: FollowUp | None = None,
        watch: IdleWatch | None = None,
        payloads: Payloads | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._executor = executor
        self._store = store
        self.state: LoopState[InHand] = LoopState(policy, sizes=model.batch_sizes)
        self._observer = observer
        retry = RetryPolicy(model.max_attempts)
        self._triage = Triage(model.name, codec, retry, revoked)
        self._payloads = payloads = payloads or Payloads()
        named = (executor.name, model.name, store, codec, observer, retry, follow_up or NoFollowUp())
        self._settler = Settler(*named, payloads=payloads)
        self._breaker = breaker or SharedBreaker()
        self._clock = clock
        self._batch_ids = (f"{batch_prefix}-{n}" for n in itertools.count(1))
        # A claim whose reply never came: it must be repeated, or nobody would know of its lease.
        self._unheard: tuple[str, int] | None = None
        self._changed = threading.Condition()
        self._hands = Hands(self.state, self._changed, clock)
        # The other loops of this model in this worker.
        self.peers: Sequence[ClaimLoop] = ()
        self._stopping = False
        self.gate = ClaimSwitch(self._changed)
        self._seat = watch.seat(model.name, self._changed) if watch else None
        self._collector = Collector(executor, self._hands, self.state, self._settler, self._breaker, clock)
        self._threads = [
            threading.Thread(target=self._feed, name=f"feed {executor.name}", daemon=True),
            threading.Thread(target=self._collector.run, name=f"collect {executor.name}", daemon=True),
        ]

    @property
    def in_hand(self) -> int:
        return len(self.state.in_hand)

    @property
    def held(self) -> frozenset[str]:
        """The ids of all batches that it leases: being claimed, in hand, or being settled."""
        return frozenset(self._hands.leased) | self._settler.late_batches

    @property
    def is_idle(self) -> bool:
        return not (self.state.in_hand or self.gate.is_shut) and self._executor.state is ExecutorState.READY

    def forget_safe_size(self) -> int | None:
        """Forget the learned size limit, when an operator reports more memory: whole batches again, until memory runs
        out. Returns what it was.
        """
        learned = self.state.safe_size
        self.state.forget_memory()
        return learned

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def use(self, model: LoopModel, policy: Policy) -> None:
        """Use another policy, or another version of the model, from the next batch on."""
        self.state.use(policy, model.batch_sizes)
        # After the policy: whoever meets the new model decides by the new policy, too (see `_look_when_rung`).
        self._model = model

    def wait_empty(self, timeout_s: float) -> bool:
        """Block until nothing is in hand, for at most `timeout_s`; returns whether that is so. Hold the switch
        first.
        """
        with self._changed:
            # At rest, a claim that was under way at the hold has become a batch in hand.
            return self._changed.wait_for(lambda: self.gate.resting and not self.in_hand, timeout=timeout_s)

    def stop_claiming(self) -> None:
        """Claim no new batch from now on; batches in hand go on."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def stop(self, grace_s: float) -> None:
        """Finish the batches in hand, for at most `grace_s`, then give the rest back."""
        self.stop_claiming()
        deadline = self._clock() + grace_s
        self._threads[0].join(timeout=max(0.0, deadline - self._clock()))
        with self._changed:
            self._changed.wait_for(lambda: not self.in_hand, timeout=max(0.0, deadline - self._clock()))
        self._collector.end()
        self._settler.give_up_on_redis()
        self._threads[1].join(timeout=max(min(1.0, grace_s), deadline - self._clock()))
        # The newest first, so that the oldest ends up at the head of its queue again.
        for batch in reversed(list(self.state.in_hand)):
            self._settler.give_back(batch.requests, batch.info, Blame.NOTHING, "the worker is stopping")
        with contextlib.suppress(RedisError):
            self._give_back_unheard()

    def _feed(self) -> None:
        backoff = 0.0
        view: View | None = None
        while not self._stopping:
            try:
                view = self._turn(view)
                backoff = 0.0
            except RedisError as error:
                if not backoff:
                    logger.warning(
                        "%s: cannot reach Redis (%s); claiming nothing until it answers",
                        self._executor.name,
                        error,
                    )
                backoff = min(_MAX_BACKOFF_S, backoff * 2 or 0.05)
                view = None
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, timeout=backoff)
            except Exception:
                # A fault in one turn must not end the only thread that feeds this GPU.
                logger.exception("%s: a turn of the claim loop failed; the next one follows", self._executor.name)
                view = None
                time.sleep(TICK_S)

    def _turn(self, view: View | None) -> View | None:
        """One decision. Returns the view that the next one may start from; None: look again."""
        if not self._may_claim():
            return None
        if self._unheard is not None:
            return self._dispatch(Dispatch(self._unheard[1], Reason.IDLE))
        decision = self._decide(view)
        if isinstance(decision, Look):
            claim = self._look(decision)
            if claim.entries and decision.then:
                return self._take(claim, decision.then)
            view = claim.view
            decision = self._decide(view)
        if isinstance(decision, Dispatch):
            # Another executor of the model may have taken the probe meanwhile.
            permitted = self._breaker.take(self._clock())
            if permitted:
                return self._dispatch(self.state.limited(decision, permitted))
        return self._wait(decision, view) if isinstance(decision, Wait) else None

    def _may_claim(self) -> bool:
        """Return whether anything may be claimed, after a wait if not."""
        if self.gate.is_shut or not self._executor.wait_ready(TICK_S):
            self.state.rests()
            self._give_back_unheard()
            if self.gate.is_shut:
                self.gate.rest(lambda: self._stopping)
            return False
        now = self._clock()
        if self._unheard is None and not self._breaker.permits(now):
            self._pause(self.state.refused(now))
            return False
        return True

    def _give_back_unheard(self) -> None:
        """It may be long until it can be repeated, and its requests would wait in a lease of a living worker."""
        if self._unheard is not None:
            batch_id, _ = self._unheard
            self._store.give_back(self._model.name, batch_id, Blame.NOTHING)
            self._hands.leased.discard(batch_id)
            self._unheard = None

    def _wait(self, decision: Wait, view: View | None) -> View | None:
        """Wait as decided. Returns the view if it still says that there is nothing to claim; None: look again."""
        pause = self.state.pause(decision, self._clock())
        if pause.ends is Until.BELL:
            return self._wait_for_work(pause.at - self._clock(), endless=decision.until == math.inf)
        self._pause(pause)
        # Whatever has come since has rung. With many callers something has, and a claim at once is sooner.
        empty = pause.ends is Until.EXECUTOR and view is not None and view.depth == 0 and self.state.was_alone
        return view if empty else None

    def _decide(self, view: View | None) -> Decision:
        now = self._clock()
        idle = sum(each.is_idle for each in self.peers)
        return self.state.decide(None if view is None else _waiting(view, now), now, idle)

    def _pause(self, pause: Pause) -> None:
        left_s = pause.at - self._clock()
        if pause.ends is Until.EXECUTOR:
            self._await_executor(left_s)
        elif left_s > 0:
            time.sleep(left_s)

    def _wait_for_work(self, left_s: float, *, endless: bool) -> View | None:
        rules = (paused := self.gate.paused, self._model)

        def must_leave() -> bool:
            shut = self.gate.is_shut or self.gate.paused != paused
            return shut or self._stopping or self._executor.state is not ExecutorState.READY

        if self._seat and endless and self._seat.rest(paused, must_leave):
            # The arrivals of now did not come over all of that time.
            self.state.looked(0, self._seat.empty_at)
        elif endless and left_s > 0 and (look := self._next_look()):
            return self._look_when_rung(look, left_s, rules)
        else:
            self._store.wait_for_bells((self._model.name,), max(0.0, left_s))
        return None

    def _next_look(self) -> Look | None:
        """The look and claim that would follow the ring; the wait and these are one call then."""
        if self._breaker.state is not BreakerState.CLOSED:
            return None
        decision = self._decide(None)
        if isinstance(decision, Dispatch) and self.state.was_alone:
            return Look(decision)
        return decision if isinstance(decision, Look) and decision.then else None

    def _await_executor(self, timeout_s: float) -> None:
        with self._changed:
            before = self.in_hand
            if before:
                self._changed.wait_for(lambda: self._stopping or self.in_hand != before, timeout=timeout_s)

    def _claim(self, decision: Dispatch, look: Look = _NO_LOOK, when_rung_s: float = 0.0) -> Claim:
        if self._unheard is None:
            self._unheard = (next(self._batch_ids), decision.size)
        model = self._model
        self.state.asks(self._clock())
        self._hands.leased.add(self._unheard[0])
        claim = self._store.claim(
            model.name,
            *self._unheard,
            model.max_attempts,
            self.gate.paused,
            margin_ms=round(decision.margin_s * 1000),
            max_bytes=model.max_batch_bytes,
            when_rung_s=when_rung_s,
            least=look.least,
            calm_ms=math.ceil(look.calm_s * 1000),
        )
        self._unheard = None
        return claim

    def _look(self, look: Look, when_rung_s: float = 0.0) -> Claim:
        """Look, and claim in the same call where the policy knows what it would decide."""
        if look.then is None or self._breaker.state is not BreakerState.CLOSED:
            claim = Claim("", (), self._store.look(self._model.name, self.gate.paused))
        else:
            claim = self._claim(self.state.limited(look.then, look.then.size), look, when_rung_s)
        if not claim.entries:
            self._hands.leased.discard(claim.batch_id)
            self.state.looked(claim.view.depth, self._clock())
        return claim

    def _dispatch(self, decision: Dispatch) -> View:
        return self._take(self._claim(decision), decision)

    def _look_when_rung(self, look: Look, within_s: float, rules: tuple[frozenset[int], LoopModel]) -> View | None:
        claim = self._look(look, within_s)
        if not claim.entries or not look.then:
            return claim.view
        # A pause may have come and gone, and a policy with it: the size of the claim is that of the one before.
        if rules != (self.gate.paused, self._model) or self._breaker.state is not BreakerState.CLOSED:
            self._recover(claim, Blame.NOTHING, "what may be claimed has changed since the claim was sent")
            return None
        # The wait was no part of the batch.
        self.state.asks(self._clock())
        return self._take(claim, look.then)

    def _take(self, claim: Claim, decision: Dispatch) -> View:
        if claim.entries:
            if self._seat:
                self._seat.worked()
            try:
                self._serve(claim, decision)
            except Exception as error:
                logger.exception(
                    "%s: claimed batch %s but could not serve it; its requests are given back",
                    self._executor.name,
                    claim.batch_id,
                )
                # Nobody else takes requests from the lease of a living worker. They are suspects, since one of them may
                # have caused it.
                self._recover(claim, Blame.SUSPECT, repr(error))
        else:
            self._breaker.found_nothing()
            self._found_nothing(claim)
        return claim.view

    def _serve(self, claim: Claim, decision: Dispatch) -> None:
        run, settled, later = self._triage.sort(claim)
        # While the executor has the batch before; nothing else could be claimed meanwhile anyway.
        inputs = self._payloads.read(run, claim.view.now_ms)
        self.state.has_read(inputs.read_s)
        run, settled, later = inputs.run, settled + inputs.settled, later + inputs.later
        # A policy that did not look could not know that the batch would be full.
        reason = Reason.FULL if len(run) == decision.size else decision.reason
        info = self._info(claim, len(run), reason)
        if later:
            self._settler.postpone(later, info, last=not (settled or run))
        if settled or not (run or later):
            self._settler.settle(settled, info, last=not run)
        if run:
            self._hands.put(run, info, claim.view.depth)
            self._hand_over(inputs, info)
        else:
            self._found_nothing(claim)

    def _found_nothing(self, claim: Claim) -> None:
        self._hands.leased.discard(claim.batch_id)
        self.state.found_nothing(claim.view.depth, self._clock())

    def _recover(self, claim: Claim, blame: Blame, why: str) -> None:
        """Give the batch back that was not served."""
        batch = self._hands.take(claim.batch_id)
        requests, info = (batch.requests, batch.info) if batch else ([], self._info(claim, 0, Reason.IDLE))
        self._give_back(requests, info, blame, why)

    def _give_back(self, requests: Sequence[Request], info: BatchInfo, blame: Blame, why: str) -> None:
        with self._hands.settling(info.batch_id):
            self._settler.give_back(requests, info, blame, why)

    def _info(self, claim: Claim, size: int, reason: Reason) -> BatchInfo:
        model, name = self._model, self._executor.name
        return BatchInfo(claim.batch_id, model.name, model.version, size, reason, claim.view.now_ms, executor=name)

    def _hand_over(self, inputs: Inputs, info: BatchInfo) -> None:
        run = inputs.run
        self._observer.claimed(run, info)
        last_try = max(map(attempt_of, run)) >= self._model.max_attempts
        # A claim has only suspects, or none.
        about = (self.state.safe_size, run[0].lost > 0, last_try, list(map(traceparent_of, run)))
        work = Work(info.batch_id, inputs.values, list(map(parameters_of, run)), *about, raw=inputs.raw)
        try:
            self._executor.send(work)
        except ExecutorGone as error:
            batch = self._hands.take(info.batch_id)
            if batch:
                self._give_back(run, info, Blame.NOTHING, str(error))


def _waiting(view: View, now: float) -> Waiting:
    """The view, converted to the loop's clock, whose time is `now`."""
    age_s = (view.now_ms - view.oldest_ms) / 1000 if view.oldest_ms else math.inf
    return Waiting(view.depth, now - age_s, now + (view.due_ms - view.now_ms) / 1000 if view.due_ms else math.inf)

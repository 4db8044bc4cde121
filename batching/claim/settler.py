"""Settles a batch after the model: its requests are stored, retried, stored as dead letters, or given back.

    outcome ──▶ an output, a refusal, out of time  ──finish──▶ result and reply
              │ a failure that may pass, in time   ──put_aside──▶ a jittered pause, an attempt counted
              │ any other failure                  ──finish──▶ result and reply, and a dead letter
    executor dead ──give_back──▶ the head of its queue; of a request that was alone in it for the last time: finish

When Redis is away, outcomes are kept and sent again until they are stored, or the worker has to stop. When Redis
refuses them for their content rather than for its own state, they are sent a few times more and then one by one, so
that only the refused one is lost, and its caller gets an error. Many bytes are sent in several calls, and the small
outcomes in the first.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from operator import attrgetter

from kombu.exceptions import OperationalError
from msgspec import structs
from redis.exceptions import RedisError

from batching.claim.payloads import Payloads
from batching.claim.rests import Rests
from batching.claim.slices import slices_of
from batching.claim.store import BatchStore, Blame, Settled
from batching.claim.values import PlacesAway
from batching.coalescing import Finished, others_of
from batching.columns import blob_of, canvas_of, kinds_of, request_of
from batching.executor import Lost
from batching.policy import RetryPolicy
from batching.policy.faults.suspects import rounds
from batching.ports import BatchInfo, Codec, FollowUp, Observer
from batching.request import Failed, Outcome, Request
from config.redis import will_repeat

logger = logging.getLogger(__name__)

_UNSTORABLE = "the model's output could not be stored"

_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0
# Redis refuses a value for its size at `proto-max-bulk-len`, which is never below this. Each try may take the whole
# timeout.
_LARGE_BYTES = 1_000_000
_OF_ITS_SIZE = 3
# About three seconds: the operator who has broken a key may be about to repair it.
_MAX_REFUSALS = 8


# Whether a position is meant.
IsIn = Callable[[int], bool]


class RefusedByRedis(Exception):
    """Redis understood the call and refuses it, however often it is repeated."""


class Settler:
    """Settles the batches of one executor. Two threads use it, for different batches, so they share nothing."""

    def __init__(
        self,
        name: str,
        model: str,
        store: BatchStore,
        codec: Codec,
        observer: Observer,
        retry: RetryPolicy,
        follow_up: FollowUp,
        jitter: Callable[[], float] = random.random,
        payloads: Payloads | None = None,
    ) -> None:
        self._name = name
        self._model = model
        self._store = store
        self._codec = codec
        self._observer = observer
        self._retry = retry
        self._follow_up = follow_up
        self._jitter = jitter
        self._payloads = payloads or Payloads()
        self._giving_up = False
        # Batches of which a part was given up: their leases must stay.
        self._unstored: set[str] = set()
        self._rests = Rests()

    def give_up_on_redis(self) -> None:
        """The worker is stopping: outcomes that Redis does not take at the next try are left to the reclaim of its
        leases.
        """
        self._giving_up = True

    def settle(
        self, outcomes: Sequence[tuple[Request, Outcome]], info: BatchInfo, *, last: bool, elapsed_s: float = 0.0
    ) -> None:
        """Store, retry or give up. `elapsed_s` is the time since the claim, whose Redis time is in `info`."""

        def settle(of: BatchInfo, is_in: IsIn | None) -> None:
            some = outcomes if is_in is None else [each for each in outcomes if is_in(each[0].position)]
            self._settle(some, of, last=last, elapsed_s=elapsed_s)

        self._for_all(info, settle, last=last)

    def _settle(
        self, outcomes: Sequence[tuple[Request, Outcome]], info: BatchInfo, *, last: bool, elapsed_s: float
    ) -> None:
        now_ms = info.claimed_ms + elapsed_s * 1000
        final: list[tuple[Request, Outcome]] = []
        again: list[tuple[Request, Failed, float]] = []
        if Failed not in kinds_of(outcomes):
            final = list(outcomes)
        else:
            for request, outcome in outcomes:
                if isinstance(outcome, Failed) and (pause_s := self._pause(request, outcome, now_ms)) is not None:
                    again.append((request, outcome, pause_s))
                else:
                    final.append((request, outcome))
        if again and not self._put_aside(again, info, last=last and not final):
            return
        if final or not again:
            self._store_final(self._left(final, info), info, last=last)
        else:
            self._observer.finished((), info)

    def lost(self, requests: Sequence[Request], info: BatchInfo, event: Lost) -> None:
        """The executor died with these requests inside."""
        alone = requests[0] if len(requests) == 1 else None
        if event.convicts_alone:
            # A suspect that was alone already would have been convicted, so another request was the cause.
            blame = Blame.NOTHING if alone and alone.lost else Blame.SUSPECT
            self.give_back(requests, info, blame, event.reason, rounds(self._retry.max_attempts))
        elif alone and self._retry.exhausted(alone.attempt + 1, alone.lost + 1):
            counted = structs.replace(alone, attempt=alone.attempt + 1, lost=alone.lost + 1)
            why = f"gave up: {counted.lost} processes ended while computing this request; the last one: {event.reason}"
            self.settle([(counted, Failed(why))], info, last=True)
        else:
            self.give_back(requests, info, Blame.SUSPECT, event.reason)

    def give_back(self, requests: Sequence[Request], info: BatchInfo, blame: Blame, why: str, losses: int = 1) -> None:
        extra = {"batch_id": info.batch_id, "model": info.model}
        logger.warning("%s: gave back %d requests: %s", self._name, len(requests), why, extra=extra)

        def give_back(of: BatchInfo, is_in: IsIn | None) -> None:
            self._until_taken(of, lambda: self._store.give_back(self._model, of.store_id, blame, losses))
            off = self._rests.positions(of.store_id)
            mine = requests if is_in is None else [each for each in requests if is_in(each.position)]
            self._observer.returned([each for each in mine if each.position not in off], of, why)

        self._for_all(info, give_back, last=True)

    @property
    def late_batches(self) -> frozenset[str]:
        """The batches of which something is left that cannot be settled now, since its shard does not answer."""
        return self._rests.batches

    def _for_all(self, info: BatchInfo, call: Callable[[BatchInfo, IsIn | None], None], *, last: bool) -> None:
        """Make a call for the requests of a batch (None: all), and for those of its rests when their shards answer."""
        off = self._rests.positions(info.store_id)
        call(info, (lambda position: position not in off) if off else None)
        for rest_id, positions in self._rests.of(info.store_id).items():
            rest = structs.replace(info, part=rest_id)
            self._rests.put(rest_id, partial(call, rest, positions.__contains__), last=last)
        if last:
            self._rests.forget(info.store_id)

    def _left(
        self, outcomes: Sequence[tuple[Request, Outcome]], info: BatchInfo, gone: AbstractSet[int] = frozenset()
    ) -> Sequence[tuple[Request, Outcome]]:
        """Those that are in no rest, and whose lease is not `gone`."""
        off = self._rests.positions(info.store_id) | gone
        return [each for each in outcomes if each[0].position not in off] if off else outcomes

    def _pause(self, request: Request, outcome: Failed, now_ms: float) -> float | None:
        if not outcome.retryable:
            return None
        left_s = (request.deadline_ms - now_ms) / 1000 if request.deadline_ms else float("inf")
        return self._retry.pause(request.attempt, left_s, self._jitter())

    def _put_aside(self, again: Sequence[tuple[Request, Failed, float]], info: BatchInfo, *, last: bool) -> bool:
        pauses = [(request.position, int(pause_s * 1000)) for request, _, pause_s in again]
        call = partial(self._store.put_aside, self._model, info.store_id, pauses, last=self._ends(info, last))
        if self._until_taken(info, call) is False:
            self._lost_lease(info)
            return False
        off = self._rests.positions(info.store_id)
        retried = [request for request, _, _ in again if request.position not in off]
        self._observer.retried(retried, info, again[0][1].message)
        return True

    def _store_final(self, final: Sequence[tuple[Request, Outcome]], info: BatchInfo, *, last: bool) -> None:
        followed = [each for each in final if each[0].canvas] if any(map(canvas_of, map(request_of, final))) else []
        plain = [(request, outcome) for request, outcome in final if not request.canvas] if followed else final
        others: tuple[bytes, ...] = ()
        gone: AbstractSet[int] = frozenset()
        left = plain
        if followed:
            # Neighbours without a canvas first: they need not wait for it. And callbacks are not sent for a lease that
            # is lost.
            first = self._finish(plain, info, last=False)
            if not first:
                return
            others, gone = first.others, first.gone
            left = self._left(followed, info, gone)
            for request, outcome in left:
                self._follow(request, outcome, info)
        taken = self._finish(left, info, last=last)
        if taken:
            self._tell(self._left(final, info, gone | taken.gone), info, (*others, *taken.others))

    def _tell(self, final: Sequence[tuple[Request, Outcome]], info: BatchInfo, rows: Sequence[bytes]) -> None:
        if rows:
            others, shared = others_of(rows, final)
            final = [*final, *others]
            info = structs.replace(info, collapsed=info.collapsed + shared)
        self._observer.finished(final, info)
        if any(map(blob_of, map(request_of, final))):
            # Who has shared a failure is no dead letter.
            self._payloads.release([each for each, end in final if each.position < 0 or not isinstance(end, Failed)])

    def _finish(self, outcomes: Sequence[tuple[Request, Outcome]], info: BatchInfo, *, last: bool) -> Finished:
        outcomes = self._payloads.lay_aside(outcomes)
        results = self._results(outcomes, info)
        sizes = list(map(len, map(attrgetter("result"), results)))
        slices = slices_of(sizes)
        if len(slices) < 2:
            return self._finish_slice(outcomes, results, info, last=last, large=sum(sizes) >= _LARGE_BYTES)
        others: tuple[bytes, ...] = ()
        gone: frozenset[int] = frozenset()
        for part in slices:
            rows = [outcomes[n] for n in part], [results[n] for n in part]
            large = sum(sizes[n] for n in part) >= _LARGE_BYTES
            taken = self._finish_slice(*rows, info, last=last and part is slices[-1], large=large)
            if not taken:
                return taken
            others += taken.others
            gone |= taken.gone
        return Finished(True, others, gone=gone)

    def _finish_slice(
        self,
        outcomes: Sequence[tuple[Request, Outcome]],
        results: list[Settled],
        info: BatchInfo,
        *,
        last: bool,
        large: bool,
    ) -> Finished:
        try:
            call = partial(self._store.finish, info.store_id, results, last=self._ends(info, last))
            taken = self._until_taken(info, call, large=large)
        except RefusedByRedis as refusal:
            logger.error(
                "%s: Redis refused the results of batch %s as a whole; storing them one by one: %s",
                self._name,
                info.batch_id,
                refusal,
            )
            taken = self._finish_one_by_one(outcomes, info, last=last)
        if not isinstance(taken, Finished):
            # It gave up; the next holder of the lease finds out what was stored.
            return Finished(True)
        if taken.gone:
            self._log_lost_lease(info)
        if not taken:
            self._lost_lease(info)
        self._payloads.forget(taken.dropped)
        if taken.refused:
            extra = {"batch_id": info.batch_id, "model": info.model}
            why = "%s: results not stored, because these ids belong to requests of frontends: %s"
            logger.error(why, self._name, ", ".join(taken.refused), extra=extra)
        return taken

    def _finish_one_by_one(self, outcomes: Sequence[tuple[Request, Outcome]], info: BatchInfo, *, last: bool) -> object:
        """Store each outcome by itself. A refused one is answered as a failure; if that is refused as well, it is
        lost.
        """
        for request, outcome in outcomes:
            (wanted,) = self._results([(request, outcome)], info)
            instead = self._codec.encode(request, Failed(_UNSTORABLE, code="INTERNAL"), info)
            if wanted.dead_letter:
                # The answer matters more than its dead letter.
                instead = structs.replace(wanted, dead_letter=b"")
            for each in (wanted, instead):
                call = partial(self._store.finish, info.store_id, [each], last=False)
                try:
                    taken = self._until_taken(info, call, patience=0, large=len(each.result) >= _LARGE_BYTES)
                    if isinstance(taken, Finished) and not taken:
                        return taken
                    break
                except RefusedByRedis as refusal:
                    logger.error("%s: the outcome of request %s was not stored: %s", self._name, request.id, refusal)
        return self._until_taken(info, partial(self._store.finish, info.store_id, (), last=self._ends(info, last)))

    def postpone(self, requests: Sequence[tuple[Request, int]], info: BatchInfo, *, last: bool) -> None:
        """Put requests aside that cannot run yet, each for so many ms; no attempt is counted."""

        def put_aside(of: BatchInfo, is_in: IsIn | None) -> None:
            pauses = [(each.position, pause_ms) for each, pause_ms in requests if is_in is None or is_in(each.position)]
            call = partial(self._store.put_aside, self._model, of.store_id, pauses, last=self._ends(of, last))
            self._until_taken(of, partial(call, count_attempt=False))

        self._for_all(info, put_aside, last=last)

    def _follow(self, request: Request, outcome: Outcome, info: BatchInfo) -> None:
        try:
            self._until_taken(info, lambda: self._follow_up.follow(request, outcome))
        except Exception:
            # A signature that cannot be sent must not delay the task's own result.
            logger.exception(
                "%s: the callbacks of request %s could not be sent; its own result is stored all the same",
                self._name,
                request.id,
            )

    def _results(self, outcomes: Sequence[tuple[Request, Outcome]], info: BatchInfo) -> list[Settled]:
        results = self._codec.encode_all(list(outcomes), info)
        if Failed in kinds_of(outcomes):
            for number, (request, outcome) in enumerate(outcomes):
                if isinstance(outcome, Failed):
                    results[number] = self._with_letter(results[number], request, outcome, info)
        return results

    def _with_letter(self, settled: Settled, request: Request, outcome: Failed, info: BatchInfo) -> Settled:
        # Before the dead letter is there: a worker that is killed in between has kept too much for a while.
        self._payloads.keep(request)
        if settled.asked is not None and request.attempt >= self._retry.max_attempts:
            # The requests that wait for it have used the same attempts.
            settled = structs.replace(settled, asked=settled.asked._replace(shared=True))
        return structs.replace(settled, dead_letter=self._codec.dead_letter(request, outcome, info))

    def _lost_lease(self, info: BatchInfo) -> None:
        self._log_lost_lease(info)
        self._observer.finished((), info)

    def _log_lost_lease(self, info: BatchInfo) -> None:
        # This worker was thought dead, and its requests are with other workers now: answering too would answer twice.
        extra = {"batch_id": info.batch_id, "model": info.model}
        logger.warning("%s: the lease of a batch was lost; other workers answer its requests", self._name, extra=extra)

    def _ends(self, info: BatchInfo, last: bool) -> bool:
        """True if the lease may end with this call: it was to be the last one, and no other was given up."""
        return last and info.store_id not in self._unstored

    def _until_taken(
        self, info: BatchInfo, call: Callable[[], object], *, patience: int = _MAX_REFUSALS, large: bool = False
    ) -> object:
        """Repeat the call through a Redis outage; the scripts are safe to repeat. `large`: it may be refused for its
        size. Returns None if it was given up because the worker is stopping.

        Raises:
            RefusedByRedis: Redis refuses the call itself.
        """
        backoff = _FIRST_BACKOFF_S
        warned = False
        refusals = 0
        while True:
            try:
                return call()
            except PlacesAway as away:
                self._rests.add(info.store_id, away.rests)
                return away.done
            except (RedisError, OperationalError) as error:
                if self._giving_up:
                    self._unstored.add(info.store_id)
                    logger.error(
                        "%s: stopping with outcomes that are not stored; another worker runs the requests again: %s",
                        self._name,
                        error,
                    )
                    return None
                if will_repeat(error):
                    refusals += 1
                elif large and self._redis_answers():
                    # Redis closes the connection on a call that is too large, which looks like an outage.
                    refusals += _OF_ITS_SIZE
                if refusals > patience:
                    raise RefusedByRedis(str(error)) from error
                if not warned:
                    warned = True
                    logger.warning(
                        "%s: cannot store outcomes now; keeping them and trying again: %s", self._name, error
                    )
                time.sleep(backoff)
                backoff = min(_MAX_BACKOFF_S, backoff * 2)

    def _redis_answers(self) -> bool:
        try:
            self._store.look(self._model)
        except RedisError:
            return False
        return True

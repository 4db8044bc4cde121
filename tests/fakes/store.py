"""The store of collocated mode, with errors on demand, and methods for a test to fill and inspect it."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast

import msgspec

from batching.claim.store import Blame, Claim, Settled, View
from batching.coalescing import Finished
from batching.memory.queues import Queued
from batching.memory.store import MemoryStore
from batching.memory.timed import started_clock
from config.keys import Shard
from config.tiers import Tier

_MAX_INLINE = 65536

epoch_ms = started_clock()


class MemoryBatchStore(MemoryStore):
    """A `MemoryStore` that a test can break, and look into.

    Args:
        before, after: called with the name of each call, before and after its effect. The caller gets their errors:
            a Redis that is away, and one whose reply was lost.
    """

    def __init__(
        self,
        *,
        before: Callable[[str], None] = lambda call: None,
        after: Callable[[str], None] = lambda call: None,
        **options: Any,
    ) -> None:
        super().__init__(**{"now_ms": epoch_ms, **options})
        self.stored: list[str] = []
        self.replies: list[tuple[str, list[bytes]]] = []
        self.before = before
        self.after = after
        self.changed = threading.Condition(cast("threading.RLock", self.lock))

    @property
    def results(self) -> dict[str, bytes]:
        """The stored states and results, by the name that each has in Redis."""
        with self.lock:
            return {Shard().result(task_id): value for task_id, value, _ in self.states.items()}

    def put(self, model: str, tier: Tier, message: bytes) -> None:
        """Queue a message as a frontend does: at the tail of the queue, with a ring."""
        self.enqueue(model, tier.rank, Queued.of(message))

    def queued(self, model: str, tier: Tier) -> list[bytes]:
        """The queued messages, head first."""
        with self.lock:
            return [each.message for each in self.queues(model).tiers[tier.rank].items]

    def put_aside_count(self, model: str) -> int:
        return len(self.queues(model).delayed)

    def end_pauses(self, model: str) -> None:
        """Make all requests that were put aside due."""
        with self.lock:
            here = self.queues(model)
            here.delayed = [(0, *each[1:]) for each in here.delayed]
            heapq.heapify(here.delayed)

    def delay(self, model: str, tier: Tier, message: bytes) -> None:
        """Add a request whose pause is over, without a ring."""
        with self.lock:
            self.queues(model).put_aside(0, tier.rank, Queued.of(message), counted=True)

    def silence(self, model: str) -> None:
        """Take the token of the bell, as another worker may."""
        self.bells.silence(model)

    def ring(self, model: str) -> None:
        with self.changed:
            super().ring(model)
            self.changed.notify_all()

    def look(self, model: str, paused: AbstractSet[int] = frozenset()) -> View:
        self.before("look")
        view = super().look(model, paused)
        self.after("look")
        return view

    def claim(self, *args: Any, **limits: Any) -> Claim:
        self.before("claim")
        claim = super().claim(*args, **limits)
        self.after("claim")
        return claim

    def finish(self, batch_id: str, outcomes: Sequence[Settled], *, last: bool) -> Finished:
        self.before("finish")
        with self.changed:
            lease = self.leases.get(batch_id)
            told = [each for each in outcomes if lease and lease.slots[each.position - 1] is not None]
            finished = super().finish(batch_id, outcomes, last=last)
            self.stored += [each.task_id for each in told if each.ttl_ms]
            self.replies += _replies_of(told).items()
            self.changed.notify_all()
        self.after("finish")
        return finished

    def put_aside(self, *args: Any, **options: Any) -> bool:
        self.before("put_aside")
        taken = super().put_aside(*args, **options)
        self.after("put_aside")
        return taken

    def give_back(self, model: str, batch_id: str, blame: Blame, losses: int = 1) -> int:
        self.before("give_back")
        returned = super().give_back(model, batch_id, blame, losses)
        with self.changed:
            self.changed.notify_all()
        self.after("give_back")
        return returned

    def wait_for_bells(self, models: Sequence[str], timeout_s: float) -> str | None:
        self.before("wait_for_bells")
        return super().wait_for_bells(models, timeout_s)

    @property
    def is_told(self) -> bool:
        return False

    def peek(self, paused: Mapping[str, AbstractSet[int]]) -> AbstractSet[str]:
        self.before("peek")
        return super().peek(paused)


def _replies_of(outcomes: Sequence[Settled]) -> dict[str, list[bytes]]:
    """The replies as Redis would publish them: by channel, and a large one by reference."""
    replies: dict[str, list[bytes]] = {}
    for each in outcomes:
        if each.reply_to:
            by_reference = msgspec.json.encode({"task_id": each.task_id, "status": "STORED"})
            small = len(each.result) <= _MAX_INLINE
            replies.setdefault(each.reply_to, []).append(each.result if small else by_reference)
    return replies

"""Equal requests in memory: who computes an answer, who waits for it, and which answers are kept.

    submit ──▶ kept: answered at once · asked already: waits with it · else it asks, for all that follow
    finish ──▶ shared: all who wait get it · not shared: the next of them is queued in its place

The rules are those of `tasks/lua/dedup.lua` and `batching/lua/coalescing.lua`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from batching.coalescing import Coalesced
from batching.fast_header import FastHeader
from batching.memory.queues import Queued
from config.tiers import TIERS

# Further requests are computed on their own: one step must not answer an unlimited number.
_MOST_WAITERS = 4096
_MOST_BYTES = 64 * 1024 * 1024
# What a kept answer costs besides its bytes, and the largest part of all room that one may take.
_OVERHEAD = 300
_LARGEST = 1 / 64
# Behind the task id of a result there are a few names and numbers; the output, which may hold anything, is before it.
_LONGEST_END = 2048

_TASK_ID = b',"task_id":"'
_OWN_TIMES = re.compile(rb'[^"]*","bunch":\{"admission_ms":\d+,"queue_ms":\d+,"tier":"[a-z]+","attempt":\d+,')
_ABOUT = re.compile(
    rb'[^"]*","bunch":\{.*?("reason":"[^"]*","batch_size":\d+,"batch_id":"[^"]*","cached":)false(.*)', re.DOTALL
)
_EXPIRED = (
    b'{"status":"FAILURE","owned":true,"result":{"exc_type":"DeadlineExceeded",'
    b'"exc_message":["the time of the request had passed before its answer was computed"],'
    b'"exc_module":"tasks.errors"},"traceback":null,"children":[],"date_done":null,"task_id":"'
)


class Waiter(NamedTuple):
    """A request that waits for the answer to another one. `owner` is JSON."""

    item: Queued
    model: str
    rank: int
    owner: bytes


class End(NamedTuple):
    """The end of a wait. `kind`: `s` it shares the answer, `x` its time has passed, `c` it was cancelled; without a
    result nobody is told.
    """

    waiter: Waiter
    kind: bytes
    result: bytes = b""

    def row(self, position: int) -> bytes:
        """The row that `batching.coalescing.others_of` reads."""
        header = _header(self.waiter)
        times = (header.enqueued_ms, header.result_ttl_ms, header.task_id.encode())
        return b"%d;%b;%d;%d;%d;%b;%b" % (position, self.kind, self.waiter.rank, *times, self.waiter.owner)


class Part(Enum):
    """The part of a request in its question: it joins those who wait, leads (is computed for all), or is alone."""

    JOINS = "joins"
    LEADS = "leads"
    ALONE = "alone"


class _Question(NamedTuple):
    first: Waiter
    waiters: dict[str, Waiter]


class Questions:
    """The questions of one process.

    Args:
        now_ms: the clock.
        most_bytes: the limit of all kept answers.
        is_cancelled: whether the request of that id was taken back.
    """

    def __init__(self, now_ms: Callable[[], int], most_bytes: int, is_cancelled: Callable[[str], bool]) -> None:
        self._now_ms = now_ms
        self._most_bytes = most_bytes
        self._is_cancelled = is_cancelled
        self._asked: dict[str, _Question] = {}
        # By model and question, the oldest first: the result, when it ends, and its size.
        self._kept: dict[tuple[str, str], tuple[bytes, int, int]] = {}
        self._kept_bytes = 0
        # The bytes of all that wait for an answer to another request.
        self.waiting_bytes = 0

    def kept(self, model: str, question: str, task_id: str, tier: str) -> bytes | None:
        """The result of a request whose answer is kept; None if it must be computed."""
        found = self._kept.get((model, question))
        if found is None or found[1] <= self._now_ms():
            return None
        before, rest = _parted(found[0])
        about = _ABOUT.fullmatch(rest)
        if about is None:
            return None
        own = b'%b","bunch":{"admission_ms":0,"queue_ms":0,"tier":"%b","attempt":1,'
        times = b'"batch_wait_ms":0,"transfer_ms":0,"compute_ms":0,'
        return before + own % (task_id.encode(), tier.encode()) + times + about[1] + b"true" + about[2]

    def forget(self, model: str) -> None:
        """The model was loaded anew: what it answered before says nothing any more."""
        for name in [name for name in self._kept if name[0] == model]:
            self._kept_bytes -= self._kept.pop(name)[2]

    def part_of(
        self, question: str, waiter: Waiter, withdraw: Callable[[int, str], Queued | None], *, may_lead: bool
    ) -> Part:
        """The part of a request in its question; one that joins waits here from now on.

        Args:
            withdraw: takes a waiting message out of its queue, by rank and id.
            may_lead: it is admitted itself, so it may take the place of one of a lower tier that still waits.
        """
        asked = self._asked.get(question)
        if asked is None or _header(asked.first).deadline_ms <= self._now_ms():
            # The first one is lost, or too late to wait for.
            return Part.LEADS
        if len(asked.waiters) >= _MOST_WAITERS or len(asked.waiters) * waiter.item.size > _MOST_BYTES:
            return Part.ALONE
        first = asked.first
        if waiter.rank < first.rank and may_lead and (moved := withdraw(first.rank, _header(first).task_id)):
            asked.waiters[_header(first).task_id] = first._replace(item=moved)
            self.waiting_bytes += moved.size
            return Part.LEADS
        asked.waiters[_header(waiter).task_id] = waiter
        self.waiting_bytes += waiter.item.size
        return Part.JOINS

    def take_all(self) -> list[tuple[str, int, Queued]]:
        """Forget all that wait: model, rank and message of each."""
        waiters = [
            (each.first.model, waiter.rank, waiter.item)
            for each in self._asked.values()
            for waiter in each.waiters.values()
        ]
        self._asked.clear()
        self.waiting_bytes = 0
        return waiters

    def lead(self, question: str, waiter: Waiter) -> None:
        """The request is queued, and computes the answer for all that follow, and for those who wait already."""
        before = self._asked.get(question)
        self._asked[question] = _Question(waiter, before.waiters if before else {})

    def ended(self, asked: Coalesced, task_id: str, result: bytes) -> tuple[list[End], Waiter | None]:
        """An outcome of a request with a question: whose waits it ends, and who is to be queued in its place."""
        if asked.keep_ms:
            self._keep(asked, result)
        found = self._asked.get(asked.question)
        if found is None or _header(found.first).task_id != task_id:
            # One that is late answers itself alone.
            return [], None
        waiters = found.waiters
        if not waiters:
            del self._asked[asked.question]
            return [], None
        if asked.shared:
            del self._asked[asked.question]
            return self._share(asked, list(waiters.values()), result), None
        return self._pass_on(asked, found)

    def _share(self, asked: Coalesced, waiters: list[Waiter], result: bytes) -> list[End]:
        before, rest = _parted(result)
        own = _OWN_TIMES.match(rest)
        tail = rest[own.end() : -2] + b',"collapsed":true}}' if own else b'"cached":false}}'
        ends = []
        for waiter in waiters:
            self.waiting_bytes -= waiter.item.size
            end = self._over(asked, waiter, asked.claimed_ms)
            ends.append(end or End(waiter, b"s", before + _about(asked, waiter, asked.attempts) + tail))
        return ends

    def _pass_on(self, asked: Coalesced, found: _Question) -> tuple[list[End], Waiter | None]:
        now = self._now_ms()
        ends = []
        left = []
        for waiter in found.waiters.values():
            end = self._over(asked, waiter, now)
            if end is None:
                left.append(waiter)
            else:
                ends.append(end)
                self.waiting_bytes -= waiter.item.size
        if not left:
            del self._asked[asked.question]
            return ends, None
        first = min(left, key=_turn)
        self.waiting_bytes -= first.item.size
        header = _header(first)
        again = header._replace(limit_ms=header.deadline_ms, attempt=min(asked.attempts, 99), lost=min(asked.lost, 9))
        heir = first._replace(item=first.item.with_header(again))
        self._asked[asked.question] = _Question(
            heir, {_header(each).task_id: each for each in left if each is not first}
        )
        return ends, heir

    def _over(self, asked: Coalesced, waiter: Waiter, at_ms: int) -> End | None:
        """The end of one who is no longer to be answered."""
        header = _header(waiter)
        if self._is_cancelled(header.task_id):
            return End(waiter, b"c")
        if header.deadline_ms > at_ms:
            return None
        code = b'"code":"DEADLINE_EXCEEDED"}}'
        return End(waiter, b"x", _EXPIRED + _about(asked, waiter, 1) + code)

    def _keep(self, asked: Coalesced, result: bytes) -> None:
        size = len(result) + _OVERHEAD
        name = (asked.model, asked.question)
        if size > self._most_bytes * _LARGEST:
            return
        before = self._kept.pop(name, None)
        self._kept_bytes += size - (before[2] if before else 0)
        now = self._now_ms()
        self._kept[name] = (result, now + asked.keep_ms, size)
        while self._kept:
            oldest = next(iter(self._kept))
            if self._kept_bytes <= self._most_bytes and self._kept[oldest][1] > now:
                break
            self._kept_bytes -= self._kept.pop(oldest)[2]


def _header(waiter: Waiter) -> FastHeader:
    header = waiter.item.header
    assert header is not None, "only requests of ours have questions"
    return header


def _turn(waiter: Waiter) -> tuple[int, int, str]:
    header = _header(waiter)
    return waiter.rank, header.enqueued_ms, header.task_id


def _about(asked: Coalesced, waiter: Waiter, attempt: int) -> bytes:
    header = _header(waiter)
    queue_ms = max(0, asked.claimed_ms - header.enqueued_ms)
    of = (header.task_id.encode(), queue_ms, TIERS[waiter.rank].value.encode(), attempt)
    return b'%b","bunch":{"admission_ms":0,"queue_ms":%d,"tier":"%b","attempt":%d,' % of


def _parted(result: bytes) -> tuple[bytes, bytes]:
    """A result up to its task id, and from there on."""
    at = result.rfind(_TASK_ID, max(0, len(result) - _LONGEST_END)) + len(_TASK_ID)
    return result[:at], result[at:]

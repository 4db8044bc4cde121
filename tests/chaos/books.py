"""Accounts for every request: a producer that records what it has sent, and an atomic look at where each request is."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis
from redis.exceptions import RedisError

from batching.claim.lease import parse_lease
from batching.fast_header import FastHeader, read_fast_header
from config.keys import RESULT_PREFIX, Shard
from config.redis import Line, Script
from config.settings import ModelSettings, Settings
from config.tiers import Tier
from tasks.client.admission_args import AdmissionArgs
from tasks.client.flush import Posted
from tasks.client.outbox import Outbox
from tasks.client.pending import Pending
from tasks.client.submission import Submission
from tasks.protocol.caller import ANYBODY
from tasks.protocol.outgoing import MessageWriter, Outgoing

KEYS = Shard()
LONG_MS = 3_600_000
# A sentinel that found its machine standing still does nothing for half a minute.
_FAILOVER_S = 120.0
_STATUS = re.compile(rb'\{"status":"([A-Z]+)"')

# KEYS  per shard: delayed, dead; then the queues of all   ARGV  prefix of results; number of shards
_LOOK = """
local queued, leased, states, delayed, dead = {}, {}, {}, {}, {}
local shards = tonumber(ARGV[2])
for i = 2 * shards + 1, #KEYS do
  for _, message in ipairs(redis.call('LRANGE', KEYS[i], 0, -1)) do queued[#queued + 1] = message end
end
for _, lease in ipairs(redis.call('KEYS', 'bunch:lease:*')) do
  leased[#leased + 1] = redis.call('LRANGE', lease, 0, -1)
end
for i = 1, 2 * shards, 2 do
  for _, entry in ipairs(redis.call('ZRANGE', KEYS[i], 0, -1)) do delayed[#delayed + 1] = string.sub(entry, 2) end
  for _, id in ipairs(redis.call('ZRANGE', KEYS[i + 1], 0, -1)) do dead[#dead + 1] = id end
end
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  states[#states + 1] = string.sub(key, #ARGV[1] + 1)
  states[#states + 1] = redis.call('GET', key)
end
return {queued, leased, delayed, states, dead}
"""


@dataclass(frozen=True, slots=True)
class Books:
    """Task ids by their place, at one time; `attempts` of the queued ones, in their order."""

    queued: list[str]
    attempts: list[int]
    leased: list[str]
    delayed: list[str]
    done: set[str]
    failed: set[str]
    dead: set[str]

    def check(self, sent: set[str]) -> None:
        """Check that each request is in exactly one place."""
        waiting = self.queued + self.leased + self.delayed
        doubled = [each for each, count in Counter(waiting).items() if count > 1]
        assert doubled == [], "in two places"
        assert set(waiting) & (self.done | self.failed) == set(), "finished, and still to be done"
        assert self.failed == self.dead
        assert sent - set(waiting) - self.done - self.dead == set(), "lost"
        assert len(sent) == len(self.done) + len(self.dead) + len(waiting)

    @property
    def waiting(self) -> int:
        return len(self.queued) + len(self.leased) + len(self.delayed)


class Ledger:
    """Sends tracked requests of one model with the script that frontends use, and accounts for them.

    Each flush goes to one of the shards, by turns; they are all on one server, so one look sees all of them.
    """

    def __init__(self, redis: Redis, model: str, shards: Sequence[Shard] = (KEYS,)) -> None:
        self._model = model
        settings = Settings(models={model: ModelSettings(name=model, source="not:Asked", cache=False)}, admission="off")
        self._line = Line(redis)
        self._shards = [
            (keys, rules, Outbox(redis, "ledger", rules, lambda pending, value: None, keys))
            for keys in shards
            for rules in [AdmissionArgs(settings, keys)]
        ]
        self._look = Script(_LOOK)
        self._writer = MessageWriter("")
        self.sent: set[str] = set()
        # The names of the shard of each request.
        self.keys_of: dict[str, Shard] = {}

    def send(self, numbers: Sequence[int], tier: Tier = Tier.PAID) -> None:
        """Send one flush. The task id of each input contains its number."""
        # The first is the last from the next flush on.
        self._shards = [*self._shards[1:], self._shards[0]]
        keys = self._shards[0][0]
        queue, nobody = keys.queue(self._model, tier), cast("Pending", None)
        posted = []
        for number in numbers:
            submission = Submission(self._model, ANYBODY[tier], b"%d" % number, LONG_MS / 1000)
            out = Outgoing(f"task-{number}", submission, queue, LONG_MS, LONG_MS, LONG_MS)
            posted.append(Posted(out, self._writer.rest(out, time.time()), nobody, receipt=False))
        self._shards[0][2].flushes += 1
        self._queue(posted)
        self.sent.update(each.out.task_id for each in posted)
        self.keys_of |= dict.fromkeys((each.out.task_id for each in posted), keys)

    def _queue(self, posted: list[Posted]) -> None:
        _, rules, outbox = self._shards[0]
        assert outbox._flush(posted, rules) == b"0" * len(posted)

    def look(self) -> Books:
        """Read all places in one script, so nothing moves meanwhile."""
        shards = [keys for keys, _, _ in self._shards]
        names = [name for keys in shards for name in (keys.delayed(self._model), keys.dead())]
        names += [queue for keys in shards for queue in keys.queues(self._model)]
        found_there = self._line.script(self._look, names, (RESULT_PREFIX, len(shards)))
        queued, leased, delayed, states, dead = found_there
        by_status: dict[bytes, set[str]] = {}
        for task_id, state in zip(states[::2], states[1::2], strict=True):
            found = _STATUS.match(state)
            assert found, state
            by_status.setdefault(found[1], set()).add(task_id.decode().split("{")[0])
        assert by_status.keys() <= {b"PENDING", b"STARTED", b"SUCCESS", b"FAILURE"}
        return Books(
            queued=[_stamp_of(each).task_id for each in queued],
            attempts=[_stamp_of(each).attempt for each in queued],
            leased=[_stamp_of(each).task_id for lease in leased for each in _messages_of(lease)],
            delayed=[_stamp_of(each).task_id for each in delayed],
            done=by_status.get(b"SUCCESS", set()),
            failed=by_status.get(b"FAILURE", set()),
            dead={each.decode() for each in dead},
        )


class ReplicatedLedger(Ledger):
    """A request is sent once a replica has it too: a failover may lose anything else. While it lasts, there is nothing
    to look at.
    """

    def __init__(self, redis: Redis, model: str, shards: Sequence[Shard] = (KEYS,)) -> None:
        super().__init__(redis, model, shards)
        self._redis = redis

    def _queue(self, posted: list[Posted]) -> None:
        until = time.monotonic() + _FAILOVER_S
        while True:
            with suppress(RedisError, OSError):
                super()._queue(posted)
                if self._is_replicated():
                    return
            assert time.monotonic() < until, "no primary with a replica takes requests"
            time.sleep(0.02)

    def _is_replicated(self) -> bool:
        # In one pipeline, as in `tasks.client.confirmation`: they are of one connection, and so of one server.
        pipeline: Any = self._redis.pipeline(transaction=False)
        pipeline.exists(self._shards[0][0].flush(f"ledger:{self._shards[0][2].flushes}"))
        pipeline.set("written-by-the-ledger", 1)
        pipeline.execute_command("WAIT", 1, 1000)
        there, _, replicas = pipeline.execute()
        return bool(there) and replicas >= 1

    def look(self) -> Books:
        until = time.monotonic() + _FAILOVER_S
        while True:
            try:
                return super().look()
            except (RedisError, OSError):
                assert time.monotonic() < until, "no primary can be read"
            time.sleep(0.02)


def _messages_of(elements: list[bytes]) -> list[bytes]:
    lease = parse_lease(elements)
    return [each.message for each in lease.entries] if lease is not None else []


def _stamp_of(message: bytes) -> FastHeader:
    stamp = read_fast_header(message)
    assert stamp is not None, message
    return stamp

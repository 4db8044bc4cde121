"""The registers of all shards, as one worker uses them: a worker that is missed in one is not dead in the others.

beat ──▶ heartbeat in every shard that answers, all servers at the same time; the worker's report at home
           throughput: all of it at home; in each shard the share that it may count on
reclaim ──▶ leases of a worker that a shard has missed, in that shard
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from redis.exceptions import RedisError

from batching.claim.place_lines import PlaceLines
from batching.claim.registry import ModelThroughput, OnGone, OnLost, WorkerRegistry
from batching.policy.sharding import capacity_shares

logger = logging.getLogger(__name__)


class ShardedRegistry:
    """`WorkerRegistry` over all places, for one thread. With one place it is the same, at the same cost.

    Args:
        claimed_per_s: returns the requests of a model that this worker has claimed of each place lately.
    """

    def __init__(
        self,
        lines: PlaceLines,
        lease_ttl_s: float,
        on_lost: OnLost | None = None,
        on_gone: OnGone | None = None,
        claimed_per_s: Callable[[str], Sequence[float]] = lambda model: (),
    ) -> None:
        self._lines = lines
        self._claimed_per_s = claimed_per_s
        home = lines.places[-1].redis
        # The home is the last of the places.
        self._registers = [
            WorkerRegistry(place.redis, lease_ttl_s, place.keys, on_lost=on_lost, home=home)
            for place in lines.places[:-1]
        ]
        self._home = WorkerRegistry(home, lease_ttl_s, lines.places[-1].keys, on_lost=on_lost, on_gone=on_gone)
        self._registers.append(self._home)

    @property
    def home_answers(self) -> bool:
        return self._lines.is_there(len(self._registers) - 1)

    def beat(
        self, worker_id: str, about: bytes, paces: Mapping[str, ModelThroughput] | None = None
    ) -> list[tuple[int, str]]:
        """`WorkerRegistry.beat` in each place; returns workers that were silent, each with the place.

        Raises RedisError if no place answers.
        """
        shares = {model: self._shares(model, pace) for model, pace in (paces or {}).items()}
        calls = {}
        for number in self._lines.asked():
            register = self._registers[number]
            mine = {model: _share_of(pace, shares[model][number]) for model, pace in (paces or {}).items()}
            calls[number] = [register.beat_call(worker_id, about if register is self._home else b"", mine)]
        answers = self._lines.ask(calls)
        overdue: list[tuple[int, str]] = []
        failure: RedisError | None = None
        for number, (reply,) in answers.items():
            if isinstance(reply, RedisError):
                failure = reply
            else:
                overdue += [(number, each) for each in self._registers[number].heard(reply)]
        if failure is not None and all(isinstance(reply, RedisError) for (reply,) in answers.values()):
            raise failure
        return overdue

    def reclaim(self, number: int, worker_id: str) -> int:
        """Give back all leases that a dead worker has in one place; returns the number of requests."""
        return self._registers[number].reclaim(worker_id)

    def bury(self, pid: int) -> int:
        """Give back all leases of a dead process of this host; returns the number of requests.

        Raises RedisError if a place could not be asked: the others have been.
        """
        return self._in_each(lambda register: register.bury(pid))

    def deregister(self, worker_id: str) -> int:
        """Remove a worker that holds no lease; returns from how many places. Raises RedisError as `bury` does."""
        return self._in_each(lambda register: register.deregister(worker_id))

    def is_elsewhere(self, worker_id: str, model: str) -> bool:
        return self._home.is_elsewhere(worker_id, model)

    def wanted(self, models: Sequence[str]) -> list[str]:
        return self._home.wanted(models)

    def _shares(self, model: str, pace: ModelThroughput) -> list[float]:
        claimed = list(self._claimed_per_s(model)) or [0.0] * len(self._registers)
        return [*capacity_shares(pace.executors * pace.rate, claimed)[:-1], 1.0]

    def _in_each(self, call: Callable[[WorkerRegistry], int]) -> int:
        failure: RedisError | None = None
        total = 0
        for register in self._registers:
            try:
                total += call(register)
            except RedisError as error:
                failure = error
        if failure is not None:
            raise failure
        return total


def _share_of(pace: ModelThroughput, share: float) -> ModelThroughput:
    return pace if share >= 1 else replace(pace, rate=pace.rate * share)

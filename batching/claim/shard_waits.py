"""The waits of one worker for new work in any shard, and its looks at idle models."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, cast

from redis.exceptions import RedisError

from batching.claim.bells import Bells, SharedBells
from batching.claim.calls import ShardCalls, peek_call
from batching.claim.place_lines import PlaceLines
from batching.claim.store import ASK_S
from config.redis import Call, Line
from config.tiers import TIERS
from config.tracked_line import TrackedLine

# Lua can unpack so many keys, and some more.
_MOST_KEYS = 4000
_KEYS_OF_ONE = 1 + len(TIERS)


class ShardWaits:
    """For all threads of a worker; `peek`, `is_told` and `wait_for_changes` are for the one that peeks."""

    def __init__(self, lines: PlaceLines, calls: Sequence[ShardCalls]) -> None:
        self._lines = lines
        self._calls = calls
        self._servers = [lines.places[group[0]].redis for group in lines.groups]
        self._shared: dict[str, SharedBells] = {}
        self._own = threading.local()
        self._model_of: dict[str, str] = {}
        self._lookouts = cast("list[TrackedLine]", lines.lines(TrackedLine))
        self._last_peek: tuple[Mapping[str, AbstractSet[int]], list[_Peek]] | None = None

    def wait_for_bells(self, models: Sequence[str], timeout_s: float) -> str | None:
        if len(models) > 1:
            return self._wait_alone(models, timeout_s, ())
        shared = self._shared.get(models[0])
        if shared is None:
            shared = self._shared.setdefault(models[0], SharedBells(self._bells()))
        self._own.shared = shared
        return self._model(shared.wait(lambda: self._names(models), timeout_s))

    @property
    def is_told(self) -> bool:
        return all(self._lookouts[group].fileno is not None for group in self._there())

    def wait_for_changes(self, models: Sequence[str], timeout_s: float) -> str | None:
        filenos = (self._lookouts[group].fileno for group in self._there())
        return self._wait_alone(models, timeout_s, [each for each in filenos if each is not None])

    def leave(self) -> None:
        shared: SharedBells | None = getattr(self._own, "shared", None)
        if shared is not None:
            shared.leave()
        bells: Bells | None = getattr(self._own, "bells", None)
        if bells is not None:
            bells.close()

    def ring(self, model: str) -> None:
        """Ring in a shard that answers: whoever waits for the model waits for all of them. Raises RedisError."""
        failure: RedisError = RedisError("no shard answers")
        for number in self._lines.asked():
            line = Line(self._lines.places[number].redis)
            try:
                # There may be a token by now. Ringing twice wakes one loop too many, which finds nothing.
                line.command("LPUSH", self._calls[number].keys.bell(model), 1)
            except RedisError as error:
                self._lines.note({number: [error]})
                failure = error
            else:
                return
            finally:
                line.close()
        raise failure

    def peek(self, paused: Mapping[str, AbstractSet[int]]) -> AbstractSet[str]:
        """The models that have something to claim in a shard that answers. Raises RedisError if none does."""
        peeks = [each for each in self._peeks(paused) if self._lines.is_there(each.group[0])]
        for group in {self._lines.group_of[each.group[0]] for each in peeks}:
            # First, so that what changes from now on is announced again.
            self._lookouts[group].heard()
        calls: dict[int, list[Call]] = {}
        for each in peeks:
            calls.setdefault(each.group[0], []).append(each.call)
        answers = self._lines.ask_over(self._lookouts, calls)
        found: set[str] = set()
        failure: RedisError | None = None
        for each, reply in zip(peeks, (reply for number in calls for reply in answers[number]), strict=True):
            if isinstance(reply, RedisError):
                failure = reply
            else:
                found.update(each.models[number - 1] for number in reply)
        if failure is not None and all(
            isinstance(reply, RedisError) for replies in answers.values() for reply in replies
        ):
            raise failure
        return found

    def _there(self) -> list[int]:
        """The servers that answer."""
        return [number for number, group in enumerate(self._lines.groups) if self._lines.is_there(group[0])]

    def _bells(self) -> Bells:
        return Bells(self._servers, self._is_away)

    def _is_away(self, server: int, error: RedisError) -> None:
        self._lines.note({number: [error] for number in self._lines.groups[server]})

    def _wait_alone(self, models: Sequence[str], timeout_s: float, leave_for: Sequence[int]) -> str | None:
        bells: Bells | None = getattr(self._own, "bells", None)
        if bells is None:
            bells = self._own.bells = self._bells()
        return self._model(bells.wait(self._names(models), timeout_s, ASK_S, leave_for))

    def _names(self, models: Sequence[str]) -> list[list[str]]:
        """The bells of each server that answers."""
        names: list[list[str]] = []
        for group in self._lines.groups:
            there = [number for number in group if self._lines.is_there(number)]
            pairs = {self._calls[number].keys.bell(model): model for model in models for number in there}
            self._model_of |= pairs
            names.append(list(pairs))
        return names

    def _model(self, rung: str | None) -> str | None:
        return None if rung is None else self._model_of[rung]

    def _peeks(self, paused: Mapping[str, AbstractSet[int]]) -> list[_Peek]:
        """An idle worker asks about the same queues again and again, so the calls are cached."""
        last = self._last_peek
        if last is None or last[0] != paused:
            last = self._last_peek = dict(paused), list(self._new_peeks(paused))
        return last[1]

    def _new_peeks(self, paused: Mapping[str, AbstractSet[int]]) -> Iterator[_Peek]:
        most = _MOST_KEYS // _KEYS_OF_ONE
        for group in self._lines.groups:
            pairs = [(number, model) for number in group for model in paused]
            for first in range(0, len(pairs), most):
                some = pairs[first : first + most]
                keys = [key for number, model in some for key in self._calls[number].waiting_keys(model)]
                call = peek_call(keys, [paused[model] for _, model in some])
                yield _Peek(group, tuple(model for _, model in some), call)


class _Peek(NamedTuple):
    """A look at queues of some shards of one server, and the model of each."""

    group: list[int]
    models: tuple[str, ...]
    call: Call

"""Asks all places of requests at once, for views: a place that does not answer is named, and holds up none of the rest.

places on one client   one pipeline for all of them, in the caller's thread
on several             a pipeline for each client, at the same time, none waited for longer than `within_s`
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from config.shards import Place, Places

# A page is read by a person, and scraped by a program that waits a few seconds.
PATIENCE_S = 1.0


class Joinable(Protocol):
    def join(self, timeout: float | None = None) -> object: ...


# Adds the commands for a place, which must be such that they can be repeated, to a pipeline.
Note = Callable[[Any, Place], object]


@dataclass(frozen=True, slots=True)
class Answer:
    """The replies of one place in the order of its commands, or why there are none."""

    place: Place
    replies: Sequence[Any] = ()
    error: RedisError | None = None


class AllPlaces:
    """Asks every place of `places`. `scripts` are the texts of those that are run by their digest."""

    def __init__(self, places: Places, scripts: Sequence[str] = ()) -> None:
        self._places = places
        self._scripts = scripts

    def ask(self, note: Note, within_s: float = PATIENCE_S, only: Collection[Place] | None = None) -> list[Answer]:
        """One answer for each place, or for each of `only`, in the order of `places`. Raises nothing of Redis."""
        places = [place for place in self._places if only is None or place in only]
        asked = ([place for place in group if place in places] for group in self._places.by_server())
        groups = [group for group in asked if group]
        found: dict[int, list[Answer]] = {}
        if len(groups) == 1:
            found[0] = self._asked(groups[0], note)
        else:
            self._ask_beside(groups, note, within_s, found)
        answers = {answer.place: answer for each in found.values() for answer in each}
        late = RedisTimeoutError(f"no reply within {within_s:g} s")
        return [answers.get(place) or Answer(place, error=late) for place in places]

    def _ask_beside(
        self, groups: Sequence[list[Place]], note: Note, within_s: float, found: dict[int, list[Answer]]
    ) -> None:
        def asking(number: int) -> Callable[[], None]:
            def ask() -> None:
                found[number] = self._asked(groups[number], note)

            return ask

        until = time.monotonic() + within_s
        for each in [beside(asking(number)) for number in range(len(groups))]:
            each.join(max(0.0, until - time.monotonic()))

    def _asked(self, group: Sequence[Place], note: Note) -> list[Answer]:
        try:
            return list(self._exchanged(group, note))
        except RedisError as error:
            return [Answer(place, error=error) for place in group]

    def _exchanged(self, group: Sequence[Place], note: Note) -> Iterator[Answer]:
        counts, replies = self._exchange(group, note)
        if any(isinstance(each, NoScriptError) for each in replies):
            for text in self._scripts:
                group[0].redis.script_load(text)
            counts, replies = self._exchange(group, note)
        start = 0
        for place, count in zip(group, counts, strict=True):
            own = replies[start : start + count]
            start += count
            yield Answer(place, own, next((each for each in own if isinstance(each, RedisError)), None))

    @staticmethod
    def _exchange(group: Sequence[Place], note: Note) -> tuple[list[int], list[Any]]:
        pipeline: Any = group[0].redis.pipeline(transaction=False)
        counts = []
        for place in group:
            before = len(pipeline)
            note(pipeline, place)
            counts.append(len(pipeline) - before)
        return counts, pipeline.execute(raise_on_error=False)


def beside(call: Callable[[], None]) -> Joinable:
    """Start a call beside the caller: in a greenlet where sockets are gevent's, else in a thread."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("socket"):
        import gevent

        greenlet: Joinable = gevent.spawn(call)
        return greenlet
    # A server that hangs must not keep a command from ending.
    thread = threading.Thread(target=call, name="place", daemon=True)
    thread.start()
    return thread


def answered(answers: Iterable[Answer]) -> list[Answer]:
    """The places that have answered. Raises the error of the first if none has."""
    listed = list(answers)
    good = [each for each in listed if each.error is None]
    if not good:
        for each in listed:
            if each.error is not None:
                raise each.error
    return good


def failures(answers: Iterable[Answer]) -> dict[str, str]:
    """The names of the places that have not answered, each with the error in one line."""
    return {each.place.name: " ".join(str(each.error).split()) for each in answers if each.error is not None}

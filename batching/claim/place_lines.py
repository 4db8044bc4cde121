"""The connections of one process to all places of requests, and which of the places answer.

    ask ──▶ all servers at the same time ──▶ replies ──▶ whoever asked
                        │ no reply, or not now
                        ▼
    away: left out of what is asked ──probe, with backoff──▶ there again

One place that is away must cost those that claim from the others nothing: a thread of its own asks for it, so that
nobody else waits for a connection that cannot be opened. While no place answers, all are asked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from config.redis import Call, Line, exchange
from config.redis_errors import Meaning, meaning_of
from config.shards import Place, Places

logger = logging.getLogger(__name__)

# With several servers: how long the reply of one may take. Scripts take milliseconds.
_PATIENCE_S = 2.0
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0
# A place that is away again within this time is probed less often.
_STEADY_AFTER_S = 5.0


def is_away(error: object) -> bool:
    """Return whether the place does not answer now, rather than refuse this call."""
    return isinstance(error, RedisError) and meaning_of(error) in {Meaning.ANEW, Meaning.LATER}


class PlaceLines:
    """All threads of a process share one; each has its own connections. Places are named by their numbers in
    `places`.
    """

    def __init__(self, places: Places, clock: Callable[[], float] = time.monotonic) -> None:
        self.places: tuple[Place, ...] = tuple(places)
        numbers = {id(place): number for number, place in enumerate(self.places)}
        # The places of each server, or of each client of a cluster's.
        self.groups = [[numbers[id(place)] for place in group] for group in places.by_server()]
        servers = {number: n for n, group in enumerate(self.groups) for number in group}
        self.group_of = [servers[number] for number in range(len(self.places))]
        # Called with the number of a place that is there again.
        self.on_back: list[Callable[[int], None]] = []
        self._clock = clock
        self._patience_s = _PATIENCE_S if len(self.groups) > 1 else None
        self._lines = threading.local()
        self._changed = threading.Condition()
        # Since when each is away, and the backoff of its probe.
        self._away: dict[int, float] = {}
        self._backoff_s: dict[int, float] = {}
        self._back_at: dict[int, float] = {}
        self._probe: threading.Thread | None = None

    def asked(self) -> list[int]:
        """The places to ask: those that are there; all, if none is."""
        away = self._away
        if not away or len(away) == len(self.places):
            return list(range(len(self.places)))
        return [number for number in range(len(self.places)) if number not in away]

    @property
    def any_there(self) -> bool:
        return len(self._away) < len(self.places)

    def is_there(self, number: int) -> bool:
        return number not in self._away or len(self._away) == len(self.places)

    def ask(self, calls: Mapping[int, Sequence[Call]]) -> dict[int, list[Any]]:
        """Run the calls of each place, those of several at the same time. An error is in the place of its reply."""
        return self.ask_over(self._lines_of_thread(), calls)

    def ask_over(self, lines: Sequence[Line], calls: Mapping[int, Sequence[Call]]) -> dict[int, list[Any]]:
        """`ask`, over connections of the caller's, one for each of `groups`."""
        parts: list[tuple[list[int], tuple[Line, list[Call]]]] = []
        for group, line in zip(self.groups, lines, strict=True):
            numbers = [number for number in group if number in calls]
            if numbers:
                parts.append((numbers, (line, [call for number in numbers for call in calls[number]])))
        answers: dict[int, list[Any]] = {}
        for (numbers, _), replies in zip(parts, exchange([part for _, part in parts], self._patience_s), strict=True):
            at = 0
            for number in numbers:
                answers[number] = replies[at : at + len(calls[number])]
                at += len(calls[number])
        self.note(answers)
        return answers

    def lines(self, kind: type[Line] = Line) -> list[Any]:
        """New connections, one for each of `groups`."""
        return [kind(self.places[group[0]].redis) for group in self.groups]

    def note(self, answers: Mapping[int, Sequence[Any]]) -> None:
        """Note which places have answered, and which have not."""
        lost: dict[int, object] = {}
        back: list[int] = []
        for number, replies in answers.items():
            error = next((each for each in replies if is_away(each)), None)
            if error is not None:
                lost[number] = error
            elif number in self._away:
                back.append(number)
        if lost:
            self._are_lost(lost)
        if back:
            self._are_back(back)

    def name(self, numbers: Iterable[int]) -> str:
        """The places, for people."""
        return ", ".join(self.places[number].keys.tag or "home" for number in numbers)

    def _lines_of_thread(self) -> list[Line]:
        lines: list[Line] | None = getattr(self._lines, "lines", None)
        if lines is None:
            lines = self._lines.lines = self.lines()
        return lines

    def _are_lost(self, lost: Mapping[int, object]) -> None:
        now = self._clock()
        with self._changed:
            new = [number for number in lost if number not in self._away]
            for number in new:
                self._away[number] = now
                soon = now - self._back_at.get(number, -_STEADY_AFTER_S) < _STEADY_AFTER_S
                before_s = self._backoff_s.get(number, 0.0) if soon else 0.0
                self._backoff_s[number] = min(_MAX_BACKOFF_S, 2 * before_s or _FIRST_BACKOFF_S)
            if self._probe is None:
                self._probe = threading.Thread(target=self._probe_until_all_are_there, name="shard probe", daemon=True)
                self._probe.start()
        if new and len(self._away) < len(self.places):
            logger.warning(
                "shards %s do not answer (%s); their requests wait until they do", self.name(new), lost[new[0]]
            )

    def _are_back(self, numbers: Sequence[int]) -> None:
        now = self._clock()
        with self._changed:
            since = {number: self._away[number] for number in numbers if number in self._away}
            for number in since:
                del self._away[number]
                self._back_at[number] = now
        if not since:
            return
        logger.warning("shards %s answer again, after %.1f s", self.name(since), now - min(since.values()))
        for number in since:
            for each in self.on_back:
                each(number)

    def _probe_until_all_are_there(self) -> None:
        due: dict[int, float] = {}
        while True:
            with self._changed:
                if not self._away:
                    self._probe = None
                    break
                now = self._clock()
                # One of each server, or of each client of a cluster's, stands for all.
                first = {self.group_of[number]: number for number in sorted(self._away, reverse=True)}
                due = {number: due.get(number, now + self._backoff_s[number]) for number in first.values()}
                self._changed.wait(max(0.001, min(due.values()) - now))
            try:
                for number in [each for each, at in due.items() if at <= self._clock()]:
                    if self._answers(number):
                        self._are_back([each for each in self.groups[self.group_of[number]] if each in self._away])
                    self._backoff_s[number] = min(_MAX_BACKOFF_S, 2 * self._backoff_s[number])
                    due.pop(number)
            except Exception:
                # Nobody else asks for a place that is away.
                logger.exception("a shard that does not answer could not be asked; asking again")
        # Whoever heard that a place is back may have asked it; this thread's connections are nobody's from here on.
        for line in getattr(self._lines, "lines", ()):
            line.close()

    def _answers(self, number: int) -> bool:
        place = self.places[number]
        line = Line(place.redis)
        try:
            # With a key, since a cluster's node may be there and not have the shard.
            line.command("EXISTS", place.keys.workers())
        except RedisError as error:
            return not is_away(error)
        finally:
            line.close()
        return True

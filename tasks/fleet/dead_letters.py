"""Dead letters: requests that failed for good, kept for an operator with everything needed to send them again.

`finish.lua` writes them in the same call that answers the caller, so each is in the place of its request. A replay
keeps the task id, so a caller who polls for it still gets the answer. A result that could not be pushed is one too: its
id is `callback:<task id>`, and its message what was to be sent, which a replay sends again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec
from redis.exceptions import RedisError

from batching.blobs.store import GRACE_MS, BlobGoneError
from config.shards import Place, Places
from config.tiers import Tier
from tasks.callbacks.store import LETTER_PREFIX, CallbackStore
from tasks.fleet.all_places import AllPlaces, answered, failures
from tasks.protocol.ids import place_of
from tasks.protocol.messages import without_expiry
from tasks.protocol.outputs import PlacedBlobs, payload_of
from tasks.protocol.results import DeadLetter
from tasks.script_args import REPLAY, ReplayArgs, ReplayKeys

_T = TypeVar("_T")
_decode = msgspec.json.Decoder(DeadLetter).decode


class DeadLetters:
    """Lists, shows, replays and deletes dead letters. A method raises RedisError if the place that it needs does not
    answer; one that reads all places, if none does. `blobs` has their payloads, by default in the same Redis.
    """

    def __init__(self, places: Places, blobs: PlacedBlobs | None = None) -> None:
        self._places = places
        self._all = AllPlaces(places)
        self._blobs = blobs or PlacedBlobs(places)

    def newest(self, limit: int = 1000) -> list[DeadLetter]:
        """Dead letters, newest first."""
        return self.read(limit)[0]

    def read(self, limit: int = 1000) -> tuple[list[DeadLetter], dict[str, str]]:
        """Dead letters, newest first, and the places that have not answered, each with its error."""

        def note(pipeline: Any, place: Place) -> None:
            pipeline.zrevrange(place.keys.dead(), 0, limit - 1, withscores=True)

        asked = self._all.ask(note)
        dated = [(at_ms, each.place, id_.decode()) for each in answered(asked) for id_, at_ms in each.replies[0]]
        # Stable, so letters of one millisecond stay in the order of their place.
        newest = sorted(dated, key=lambda each: -each[0])[:limit]
        records, missed = self._records([(place, id_) for _, place, id_ in newest])
        return records, failures(asked) | missed

    def _records(self, letters: Sequence[tuple[Place, str]]) -> tuple[list[DeadLetter], dict[str, str]]:
        if not letters:
            return [], {}
        ids: dict[Place, list[str]] = {}
        for place, id_ in letters:
            ids.setdefault(place, []).append(id_)

        def note(pipeline: Any, place: Place) -> None:
            for each in ids.get(place, ()):
                pipeline.hget(place.keys.dead(each), "record")

        asked = self._all.ask(note)
        found: dict[tuple[Place, str], bytes | None] = {}
        for each in asked:
            # None of a place that has failed since.
            replies = each.replies if each.error is None else ()
            found |= {(each.place, id_): raw for id_, raw in zip(ids.get(each.place, ()), replies, strict=False)}
        return [_decode(raw) for letter in letters if (raw := found.get(letter))], failures(asked)

    def show(self, task_id: str) -> tuple[DeadLetter, bytes] | None:
        """The record and the message as it was queued; None for an unknown id."""
        place = place_of(self._places, task_id)
        stored = cast("dict[bytes, bytes]", place.redis.hgetall(place.keys.dead(task_id)))
        return (_decode(stored[b"record"]), stored[b"message"]) if stored else None

    def replay(self, task_id: str, time_s: float, result_ttl_s: float) -> bool:
        """Queue a dead letter again under its own id, with `time_s` until its deadline and no attempts used. False if
        gone.

        Raises:
            BlobGoneError: its payload is gone; without it, it would only fail again.
        """
        stored = self.show(task_id)
        if stored is None:
            return False
        if task_id.startswith(LETTER_PREFIX):
            return CallbackStore(self._places).replay(task_id, time.time())
        record, message = stored
        blob = payload_of(message)
        blobs = self._blobs.of(task_id)
        if blob is not None and not blobs.extend(blob.id, int(time_s * 1000) + GRACE_MS, keep=False):
            raise BlobGoneError(f"the payload of dead letter {task_id} is not there any more")
        place = place_of(self._places, task_id)
        keys = ReplayKeys(
            dead=place.keys.dead(),
            letter=place.keys.dead(task_id),
            result=place.keys.result(task_id),
            queue=place.keys.queue(record.model, Tier(record.tier)),
            bell=place.keys.bell(record.model),
        )
        args = ReplayArgs(
            task_id=task_id,
            time_ms=int(time_s * 1000),
            result_ttl_ms=int(result_ttl_s * 1000),
            message=without_expiry(message),
        )
        return bool(place.redis.register_script(REPLAY.text)(keys=keys, args=args))

    def drop(self, task_id: str) -> bool:
        """Delete a dead letter, and its payload. False if there was none."""
        place = place_of(self._places, task_id)
        pipeline = place.redis.pipeline(transaction=True)
        pipeline.hget(place.keys.dead(task_id), "message")
        pipeline.zrem(place.keys.dead(), task_id)
        pipeline.delete(place.keys.dead(task_id))
        message, removed, _ = pipeline.execute()
        if message and (blob := payload_of(message)) is not None:
            self._blobs.of(task_id).release([blob.id])
        return bool(removed)

    def ids(self) -> list[str]:
        """The id of every dead letter, the oldest of each place first."""
        return self.all_ids()[0]

    def all_ids(self) -> tuple[list[str], dict[str, str]]:
        """`ids`, and the places that have not answered, each with its error."""

        def note(pipeline: Any, place: Place) -> None:
            pipeline.zrange(place.keys.dead(), 0, -1)

        asked = self._all.ask(note)
        return [id_.decode() for each in answered(asked) for id_ in each.replies[0]], failures(asked)

    def for_each(self, task_ids: Iterable[str], act: Callable[[str], _T]) -> dict[str, _T | RedisError]:
        """Act on each dead letter. Returns what `act` returned, or why its place does not answer: that place is then
        left alone, and the others' are done all the same.
        """
        away: dict[Place, RedisError] = {}
        done: dict[str, _T | RedisError] = {}
        for task_id in dict.fromkeys(task_ids):
            place = place_of(self._places, task_id)
            if place not in away:
                try:
                    done[task_id] = act(task_id)
                    continue
                except RedisError as error:
                    away[place] = error
            done[task_id] = away[place]
        return done

    def count(self) -> tuple[int, bool]:
        """The number of dead letters in the places that answer, and whether all do."""

        def note(pipeline: Any, place: Place) -> None:
            pipeline.zcard(place.keys.dead())

        asked = self._all.ask(note)
        good = answered(asked)
        return sum(each.replies[0] for each in good), len(good) == len(asked)

"""Replay and delete dead letters from the page."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from batching.blobs.store import BlobGoneError
from tasks.fleet.dead_letters import DeadLetters
from tasks.protocol.outputs import PlacedBlobs
from webapp.errors import ApiError
from webapp.services import Services


def will_replay(services: Services, arguments: Mapping[str, Any]) -> str:
    count = _letters(len(_ids(services, arguments)))
    minutes = services.settings.result_ttl_ms / 60_000
    return (
        f"{count} will be queued again under the same ids, at the end of their queues, with new attempts and "
        f"{minutes:g} minutes to be answered. They may fail again for the same reason."
    )


def replay(services: Services, arguments: Mapping[str, Any]) -> str:
    letters, settings = _store(services), services.settings
    ids = _ids(services, arguments)

    def again(task_id: str) -> bool:
        found = letters.show(task_id)
        if found is None or found[0].model not in settings.models:
            return False
        with suppress(BlobGoneError):
            return letters.replay(task_id, settings.result_ttl_s, settings.result_ttl_s)
        return False

    replayed = list(letters.for_each(ids, again).values()).count(True)
    return f"{_letters(replayed)} queued again" + _rest(
        len(ids) - replayed,
        "already gone, without their payload, of a model that is not served, or in a shard that does not answer",
    )


def will_drop(services: Services, arguments: Mapping[str, Any]) -> str:
    count = _letters(len(_ids(services, arguments)))
    return f"{count} will be deleted with their messages and reasons. This cannot be undone."


def drop(services: Services, arguments: Mapping[str, Any]) -> str:
    letters = _store(services)
    ids = _ids(services, arguments)
    dropped = list(letters.for_each(ids, letters.drop).values()).count(True)
    return f"{_letters(dropped)} deleted" + _rest(
        len(ids) - dropped, "already gone, or in a shard that does not answer"
    )


def _store(services: Services) -> DeadLetters:
    return DeadLetters(services.places, PlacedBlobs(services.places, services.settings))


def _ids(services: Services, arguments: Mapping[str, Any]) -> list[str]:
    ids = arguments.get("ids")
    if ids == "all":
        return DeadLetters(services.places).ids()
    if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
        raise ApiError("INVALID_INPUT", 'ids: a list of task ids, or "all"')
    return list(dict.fromkeys(ids))


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count:,} dead letters"


def _rest(count: int, why: str) -> str:
    return f"; {count:,} skipped: {why}" if count else ""

"""What can be done from the page. Each action first says, in a sentence, what it would do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tasks.deadletters import DeadLetters
from webapp.errors import ApiError
from webapp.services import Services

logger = logging.getLogger(__name__)


class ActionBody(msgspec.Struct):
    """`POST /ops/actions/<name>`."""

    arguments: dict[str, Any] = {}
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """`will` says what `do` would do now; `do` returns what it did. Both raise ApiError for wrong arguments."""

    will: Callable[[Services, Mapping[str, Any]], str]
    do: Callable[[Services, Mapping[str, Any]], str]


def run(services: Services, name: str, body: ActionBody, who: str) -> dict[str, Any]:
    """Raises ApiError; RedisError when Redis is away."""
    action = ACTIONS.get(name)
    if action is None:
        raise ApiError("NOT_FOUND", f"there is no action {name[:64]!r}; there are {', '.join(ACTIONS)}")
    if not body.confirm:
        return {"action": name, "will": action.will(services, body.arguments)}
    done = action.do(services, body.arguments)
    # Who changed what is the first question after an incident.
    logger.warning("action %s: %s", name, done, extra={"action": name, "client": who})
    return {"action": name, "done": done}


def _ids(services: Services, arguments: Mapping[str, Any]) -> list[str]:
    ids = arguments.get("ids")
    if ids == "all":
        return DeadLetters(services.redis).ids()
    if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
        raise ApiError("INVALID_INPUT", 'ids: a list of task ids, or "all"')
    return list(dict.fromkeys(ids))


def _will_replay(services: Services, arguments: Mapping[str, Any]) -> str:
    count = _letters(len(_ids(services, arguments)))
    minutes = services.settings.result_ttl_ms / 60_000
    return (
        f"{count} will be queued again under the same ids, at the end of their queues, with fresh attempts and "
        f"{minutes:g} minutes to be answered. What made them fail may do so again."
    )


def _replay(services: Services, arguments: Mapping[str, Any]) -> str:
    letters, settings = DeadLetters(services.redis), services.settings
    ids = _ids(services, arguments)
    replayed = 0
    for task_id in ids:
        found = letters.show(task_id)
        if found is not None and found[0].model in settings.models:
            replayed += letters.replay(task_id, settings.result_ttl_s, settings.result_ttl_s)
    return f"{_letters(replayed)} queued again" + _rest(
        len(ids) - replayed, "gone meanwhile, or of a model that is not served"
    )


def _will_drop(services: Services, arguments: Mapping[str, Any]) -> str:
    count = _letters(len(_ids(services, arguments)))
    return f"{count} will be deleted, message and reason. This cannot be undone."


def _drop(services: Services, arguments: Mapping[str, Any]) -> str:
    letters = DeadLetters(services.redis)
    ids = _ids(services, arguments)
    dropped = sum(letters.drop(each) for each in ids)
    return f"{_letters(dropped)} deleted" + _rest(len(ids) - dropped, "gone meanwhile")


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count:,} dead letters"


def _rest(count: int, why: str) -> str:
    return f"; {count:,} not: {why}" if count else ""


ACTIONS: dict[str, Action] = {
    "replay": Action(_will_replay, _replay),
    "drop": Action(_will_drop, _drop),
}

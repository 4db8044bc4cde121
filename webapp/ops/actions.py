"""The actions of the page. Each one first says, in a sentence, what it would do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from webapp.errors import ApiError
from webapp.ops import commands, dead_letters
from webapp.services import Services

logger = logging.getLogger(__name__)


class ActionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /ops/actions/<name>`."""

    arguments: dict[str, Any] = {}
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """`will` says what `do` would do now; `do` returns what it did. Both raise ApiError for wrong arguments."""

    will: Callable[[Services, Mapping[str, Any]], str]
    do: Callable[[Services, Mapping[str, Any]], str]


ACTIONS: dict[str, Action] = {
    "pause": Action(commands.will_pause, commands.pause),
    "resume": Action(commands.will_resume, commands.resume),
    "drain": Action(commands.will_drain, commands.drain),
    "tune": Action(commands.will_tune, commands.tune),
    "replay": Action(dead_letters.will_replay, dead_letters.replay),
    "drop": Action(dead_letters.will_drop, dead_letters.drop),
}


def run(services: Services, name: str, body: ActionBody, who: str, address: str) -> dict[str, Any]:
    """Run an action. `who` is the operator's name. Raises ApiError; RedisError when Redis is away."""
    action = ACTIONS.get(name)
    if action is None:
        raise ApiError("NOT_FOUND", f"there is no action {name[:64]!r}; the actions are {', '.join(ACTIONS)}")
    if not body.confirm:
        return {"action": name, "will": action.will(services, body.arguments)}
    done = action.do(services, body.arguments)
    # Logged, since an incident begins with the question who changed what.
    extra = {"action": name, "operator": who, "client": address}
    logger.warning("action %s by %s: %s", name, who, done, extra=extra)
    return {"action": name, "done": done}

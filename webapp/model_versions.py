"""Names that callers use for models ─▶ the models that answer: the one place where owners are divided among versions.

    "echo", "minilm@2", None ──────▶ one dict for all that has one answer, made when the configuration is read
    "minilm", while it is divided ─▶ the owner's position ─▶ the version that has it (`tasks.client.versions`)

Every door asks here. Weights are the file's, or those that `manage.py tune minilm@2 weight=5` has stored; each frontend
reads them once a second, if there are versions.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from itertools import count

from redis import Redis
from redis.exceptions import RedisError

from config.model_files.versions import SEPARATOR, others_of
from config.settings import Settings
from tasks.client.owner_numbers import OwnerNumbers
from tasks.client.versions import WHOLE, Division, digest, divide, hashed_position, position
from tasks.fleet.desired_state import DesiredState, weight_of
from webapp.errors import ApiError
from webapp.request import HttpRequest

logger = logging.getLogger(__name__)


class ModelVersions:
    """The models and versions of one frontend.

    Args:
        families: of versions beside a model's own, the name of the model; `full` has the name with the version for all
            versions of a model that has several.
    """

    def __init__(self, settings: Settings, redis: Redis) -> None:
        self._redis = redis
        self._default = settings.default_model
        self._models = settings.models
        self._others = {
            name: others
            for name, model in settings.models.items()
            if name == model.family and (others := others_of(settings.models, name))
        }
        self.families = {each.name: name for name, others in self._others.items() for each in others}
        self.full = {
            name: f"{settings.models[name].family}{SEPARATOR}{settings.models[name].version}"
            for name in (*self._others, *self.families)
        }
        # The model's own version is asked for by its full name too, whether there are others or not.
        self._exact = {
            **{f"{model.family}{SEPARATOR}{model.version}": name for name, model in settings.models.items()},
            **{name: name for name in settings.models},
        }
        self._numbers = OwnerNumbers(redis)
        self._strangers = count(random.randrange(WHOLE))
        self._divisions: dict[str, Division] = {}
        self._answers: dict[str | None, str] = {}
        self._divide({each.name: each.weight for each in settings.models.values()})

    @property
    def chores(self) -> list[Callable[[], None]]:
        """The work of every second; nothing without versions."""
        return [self.refresh] if self._others else []

    def route(self, asked: str | None, call: HttpRequest) -> str:
        """The model that answers an identified caller who has asked for this name; None: for the default model.

        Raises:
            ApiError: UNKNOWN_MODEL, with the models or versions that there are.
        """
        name = self._answers.get(asked)
        return self._divided(asked, call) if name is None else name

    def undivided(self, asked: str | None) -> str | None:
        """The model that answers every caller who has asked for this name; None if there is none, or it depends."""
        return self._answers.get(asked)

    def exact(self, asked: str) -> str:
        """The model of a name, which is the model's own version where it names none. Raises ApiError UNKNOWN_MODEL."""
        name = self._exact.get(asked)
        if name is not None:
            return name
        family, sign, version = asked.partition(SEPARATOR)
        if sign and family in self._models:
            known = self.versions(family)
            are = "its versions are" if len(known) > 1 else "its version is"
            raise ApiError(
                "UNKNOWN_MODEL", f"there is no version {version[:64]!r} of {family}; {are} {', '.join(known)}"
            )
        known = [each for each in self._models if each not in self.families]
        raise ApiError("UNKNOWN_MODEL", f"there is no model {asked[:64]!r}; the models are {', '.join(known)}")

    def answering(self, asked: str) -> Sequence[str]:
        """The models of which one answers, by its caller. Raises ApiError UNKNOWN_MODEL."""
        division = self._divisions.get(asked)
        return (self.exact(asked),) if division is None else division.served

    def versions(self, model: str) -> list[str]:
        """The versions of a model, its own first."""
        return [each.version for each in (self._models[model], *self._others.get(model, ()))]

    def refresh(self) -> None:
        """Read the weights. Raises RedisError; then those before remain."""
        wanted = DesiredState(self._redis).read(self.families)
        self._divide({name: weight_of(self._models[name], desired) for name, desired in wanted.items()})
        for name in self._others:
            if name in self._divisions:
                self._numbers.keep(name)
            else:
                self._numbers.forget(name)

    def start(self) -> None:
        """Read the weights before the first request: those of the file may be old."""
        for chore in self.chores:
            try:
                chore()
            except RedisError as error:
                logger.warning(
                    "could not read the weights of versions; until Redis answers, the file's hold: %s", error
                )

    def _divide(self, weights: dict[str, float]) -> None:
        divisions = {
            name: division
            for name, others in self._others.items()
            if (division := divide(name, {each.name: weights[each.name] for each in others})) is not None
        }
        # The own version by its full name has no place here, as a caller's Idempotency-Key must tell the two apart.
        own = {f"{name}{SEPARATOR}{self._models[name].version}" for name in self._others}
        answers: dict[str | None, str] = {
            asked: name for asked, name in self._exact.items() if asked not in divisions and asked not in own
        }
        if self._default in answers:
            answers[None] = answers[self._default]
        self._divisions, self._answers = divisions, answers

    def _divided(self, asked: str | None, call: HttpRequest) -> str:
        name = self._default if asked is None else asked
        division = self._divisions.get(name)
        answers = self.exact(name) if division is None else self._version(name, division, call)
        call.asked_for(name)
        return answers

    def _version(self, model: str, division: Division, call: HttpRequest) -> str:
        owner = call.caller.owner or call.client_id
        if owner:
            try:
                return division.at(self._numbers.position(model, owner))
            except RedisError as error:
                logger.warning("could not read which version of %s an owner has; it gets its own: %s", model, error)
                return model
        key = call.header("HTTP_IDEMPOTENCY_KEY")
        # A caller without a name is somebody else each time, but repeats itself with the same key.
        return division.at(hashed_position(digest(key)) if key else position(next(self._strangers)))

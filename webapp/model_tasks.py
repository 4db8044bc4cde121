"""The tasks of the models: which doors each answers, read without importing it.

bunch.toml `tasks`, else the class's own ─▶ ModelTasks ─┬─ serving(task): the model of a request that names none
the class's `accepts_tokens`, `accepts_dimensions` ─────┘  require(model, task): 400 with what to write
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from config.model_files.sources import class_literals
from config.schema import ModelSettings, Task
from config.settings import Settings
from webapp.errors import ApiError

TASKS: tuple[str, ...] = get_args(Task)
_ATTRIBUTES = ("tasks", "accepts_tokens", "accepts_dimensions", "max_input_length", "description")


class Served(msgspec.Struct, frozen=True):
    """One model as the doors see it. `max_input_length` is in tokens; 0: its class does not say."""

    name: str
    tasks: tuple[str, ...] = ()
    accepts_tokens: bool = False
    accepts_dimensions: bool = False
    max_input_length: int = 0
    description: str = ""


class ModelTasks:
    """The models of one process, the default one first."""

    def __init__(self, settings: Settings) -> None:
        # The same path as `config.model_files.import_path`.
        folder = [str(Path(settings.config_file).parent)] if settings.config_file else []
        first = settings.default_model
        models = sorted(settings.models.values(), key=lambda model: model.name != first)
        self._served = {model.name: _served(model, [*folder, *sys.path]) for model in models}
        # A version is found through its model, which its caller may be divided to.
        self._models = [self._served[model.name] for model in models if model.name in {model.family, first}]

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def __getitem__(self, name: str) -> Served:
        return self._served[name]

    def serving(self, task: str) -> Served:
        """Return the default model if it has the task, else the first that has. Raises UNKNOWN_MODEL."""
        for each in self._models:
            if task in each.tasks:
                return each
        raise ApiError("UNKNOWN_MODEL", f'no model has this task; one needs tasks = ["{task}"], see GET /v1/models')

    def require(self, name: str, task: str) -> Served:
        """Return a model that is served. Raises ApiError INVALID_INPUT for one without the task."""
        found = self._served[name]
        if task not in found.tasks:
            raise ApiError(
                "INVALID_INPUT",
                f'model: {name} does not answer here; that needs tasks = ["{task}"] in its class or in bunch.toml',
            )
        return found


def _served(model: ModelSettings, path: list[str]) -> Served:
    told: dict[str, Any] = {} if model.is_remote else class_literals(model.source, path, _ATTRIBUTES)
    tasks = told.get("tasks", ()) if model.tasks is None else model.tasks
    length, description = told.get("max_input_length", 0), told.get("description", "")
    return Served(
        model.name,
        tuple(each for each in TASKS if isinstance(tasks, list | tuple) and each in tasks),
        told.get("accepts_tokens") is True,
        told.get("accepts_dimensions") is True,
        length if isinstance(length, int) else 0,
        description if isinstance(description, str) else "",
    )

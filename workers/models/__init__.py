"""Loading of models: from `source` in bunch.toml to an object that predicts.

    Model.load(device) once in the executor's process, then Model.predict(inputs, parameters) for every batch

The names for a model's author are in `bunch`. Further exceptions about models:

    Exception
    ├── LoadError          the source in bunch.toml does not lead to a model; says what would
    └── UpstreamError      an API that the model calls failed; callers get `public`, not the API's text
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bunch import InputRejected, InvalidInput, Model, Output, TransientError
from config.model_files.schemes import resolve, scheme_of
from config.secrets import masking
from config.secrets.masking import names_of
from config.settings import ModelSettings

__all__ = [
    "InputRejected",
    "InvalidInput",
    "LoadError",
    "Model",
    "Output",
    "TransientError",
    "UpstreamError",
    "construct",
    "effective_version",
    "load_model",
    "loader_of",
]

_DEFAULT_VERSION = "1"


class UpstreamError(Exception):
    """A failed API. `message` is for log and dead letter. `public` is the text for callers: nothing that came from the
    API.
    """

    def __init__(self, message: str, public: str) -> None:
        super().__init__(message, public)
        self.public = public

    def __str__(self) -> str:
        return str(self.args[0])


class LoadError(Exception):
    """`source` or `options` of a model cannot be used as they are."""


def loader_of(settings: ModelSettings) -> Callable[[ModelSettings], Model]:
    """The function that makes the model, by the scheme of its source. It is imported now, before the author's modules.

    It raises `LoadError` when the source leads to no model, or does not fit the other settings. The caller calls `load`
    and `warmup`.
    """
    load: Callable[[ModelSettings], Model] = resolve(scheme_of(settings.source).loader)
    return load


def load_model(settings: ModelSettings) -> Model:
    """Find and construct the model with `loader_of`."""
    return loader_of(settings)(settings)


def effective_version(settings: ModelSettings, own: str) -> str:
    """The version that callers see: bunch.toml's `version`, or the model's own where the file has the default. A
    version with a table of its own is what it is asked for by.
    """
    says_nothing = settings.version == _DEFAULT_VERSION and settings.name == settings.family
    return own if own and says_nothing else settings.version


def construct(kind: type[Any], source: str, options: dict[str, Any]) -> Any:
    """An object of the class, made with the `options` of bunch.toml. Raises LoadError if it does not accept them."""
    try:
        return kind(**options)
    except TypeError as error:
        where = masking.shown("source", source)
        raise LoadError(f"{where} cannot be created with the options {names_of(options)}: {error}") from error

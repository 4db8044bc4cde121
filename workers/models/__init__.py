"""Models: from `source` in bunch.toml to an object that predicts.

    Model.load(device) once in the executor's process, then Model.predict(inputs, parameters) for every batch

What a model's author imports stands in `bunch`. Exceptions that concern models, beside those:

    Exception
    ├── LoadError          the source in bunch.toml does not lead to a model; says what would
    └── UpstreamError      an API that the model asks failed; what it said is no caller's to read, `public` is
"""

from __future__ import annotations

import importlib
from typing import Any

from bunch import InputRejected, InvalidInput, Model, Output, TransientError
from config.secrets import masking
from config.secrets.masking import names_of
from config.settings import ModelSettings
from workers.models.function import FunctionModel
from workers.models.interface import what_is_wrong, what_is_wrong_with_function

__all__ = [
    "InputRejected",
    "InvalidInput",
    "LoadError",
    "Model",
    "Output",
    "TransientError",
    "UpstreamError",
    "effective_version",
    "load_model",
]

MAX_FUNCTION_BATCH = 100
_DEFAULT_VERSION = "1"


class UpstreamError(Exception):
    """`message` is for log and dead letter. `public` is what callers are told: nothing that came from the API."""

    def __init__(self, message: str, public: str) -> None:
        super().__init__(message, public)
        self.public = public

    def __str__(self) -> str:
        return str(self.args[0])


class LoadError(Exception):
    """`source` or `options` of a model cannot be used as they are."""


def load_model(settings: ModelSettings) -> Model:
    """Find and construct the model; `load` and `warmup` are the caller's to call.

    Raises:
        LoadError: the source leads nowhere, to something that is no model, or does not go with the other
        settings.
    """
    source = settings.source
    if settings.is_url:
        from workers.models.http import HttpModel

        defaults = {"url": source, "timeout_ms": settings.timeout_ms}
        api: Model = _construct(HttpModel, source, defaults | settings.options)
        return api
    found = _find(source)
    if isinstance(found, type):
        missing = [name for name in ("load", "predict") if not callable(getattr(found, name, None))]
        if missing:
            raise LoadError(f"{source} is a class without {' and '.join(missing)}(); see the model interface")
        model: Model = _construct(found, source, settings.options)
        _require(source, what_is_wrong(model))
        return model
    if not callable(found):
        raise LoadError(f"{source} is a {type(found).__name__}; it must be a class or a function")
    if settings.options:
        raise LoadError(
            f"{source} is a function, which takes no options; make it a class, or remove {names_of(settings.options)}"
        )
    if settings.max_batch_size > MAX_FUNCTION_BATCH:
        raise LoadError(
            f"{source} is a function, which takes 1 to {MAX_FUNCTION_BATCH} strings; "
            f"max_batch_size is {settings.max_batch_size}, set it to {MAX_FUNCTION_BATCH} or less"
        )
    _require(source, what_is_wrong_with_function(found))
    return FunctionModel(found)


def _require(source: str, wrong: str | None) -> None:
    if wrong:
        raise LoadError(f"{source}: {wrong}")


def effective_version(settings: ModelSettings, own: str) -> str:
    """What callers are told: bunch.toml's `version`, or the model's own where the file has the default."""
    return own if own and settings.version == _DEFAULT_VERSION else settings.version


def _find(source: str) -> Any:
    module_name, _, attribute = source.partition(":")
    if not attribute:
        raise LoadError(f'{source!r} must be "package.module:Name" or an http(s) URL')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Missing may also be something that the module itself imports: then its own traceback says more.
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise LoadError(f"no module {error.name!r} for {source!r}; check PYTHONPATH") from None
        raise
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise LoadError(f"module {module_name!r} has no {attribute!r}") from None


def _construct(kind: type[Any], source: str, options: dict[str, Any]) -> Any:
    try:
        return kind(**options)
    except TypeError as error:
        where = masking.shown("source", source)
        raise LoadError(f"{where} cannot be created with the options {names_of(options)}: {error}") from error

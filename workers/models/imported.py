"""A class or a function as a model: `package.module:Name`, imported in the executor's process."""

from __future__ import annotations

import importlib
from typing import Any

from config.model_files.schemes import forms
from config.secrets.masking import names_of
from config.settings import ModelSettings
from workers.models import LoadError, Model, construct
from workers.models.function import FunctionModel
from workers.models.interface import what_is_wrong, what_is_wrong_with_function

MAX_FUNCTION_BATCH = 100


def load(settings: ModelSettings) -> Model:
    """Construct an object of the class, or give the function the interface of one.

    Raises:
        LoadError: the source leads to no model, or does not fit the other settings.
    """
    source = settings.source
    found = _find(source)
    if isinstance(found, type):
        missing = [name for name in ("load", "predict") if not callable(getattr(found, name, None))]
        if missing:
            raise LoadError(f"{source} is a class without {' and '.join(missing)}(); see the model interface")
        model: Model = construct(found, source, settings.options)
        _require(source, what_is_wrong(model))
        return model
    if not callable(found):
        raise LoadError(f"{source} is a {type(found).__name__}; it must be a class or a function")
    if settings.options:
        raise LoadError(
            f"{source} is a function, which takes no options; make it a class, or remove {names_of(settings.options)}"
        )
    if settings.takes_bytes:
        raise LoadError(f"{source} is a function, which takes strings; make it a class, or remove input_type")
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


def _find(source: str) -> Any:
    module_name, _, attribute = source.partition(":")
    if not attribute:
        raise LoadError(f"{source!r} must be {forms()}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The missing name may also be one that the module itself imports: then its own traceback says more.
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise LoadError(f"no module {error.name!r} for {source!r}; check PYTHONPATH") from None
        raise
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise LoadError(f"module {module_name!r} has no {attribute!r}") from None

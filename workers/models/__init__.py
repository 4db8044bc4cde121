"""Models, and what a model must look like to be served.

    Model.load(device) once in the executor's process, then Model.predict(inputs, parameters) for every batch

Exceptions that concern models:

    Exception
    ├── LoadError          the source in bunch.toml does not lead to a model; says what would
    ├── TransientError     raise it, or a subclass: what failed may pass the next time (ConnectionError and TimeoutError
    │                      are taken so too); the batch is tried again as a whole, after a pause
    ├── UpstreamError      an API that the model asks failed; what it said is no caller's to read, `public` is
    └── InputRejected      return it as an input's output: the model refuses that input (422)
        └── InvalidInput   the input has the wrong form for this model (400)
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, runtime_checkable

from config.settings import ModelSettings

MAX_FUNCTION_BATCH = 100
_DEFAULT_VERSION = "1"


class InputRejected(Exception):
    """A model's refusal of one input. `message` is what the caller reads."""

    def __init__(self, message: str = "the model refused this input") -> None:
        super().__init__(message)
        self.message = message


class InvalidInput(InputRejected):
    """The input is not of the form that this model takes."""


class TransientError(Exception):
    """The model could not do it now; the inputs are not to blame."""


class UpstreamError(Exception):
    """`message` is for log and dead letter. `public` is what callers are told: nothing that came from the API."""

    def __init__(self, message: str, public: str) -> None:
        super().__init__(message, public)
        self.public = public

    def __str__(self) -> str:
        return str(self.args[0])


class LoadError(Exception):
    """`source` or `options` of a model cannot be used as they are."""


@runtime_checkable
class Model(Protocol):
    """A class source, constructed as `Source(**options)` in the executor's process.

    Optional beside these: `warmup()`, called once after `load`; `version`, a string that callers are told
    unless bunch.toml gives one; `cost(input) -> int`, how much of `max_batch_cost` an input takes (tokens, say).
    """

    def load(self, device: str) -> None:
        """Make ready to predict. `device` as in bunch.toml: `auto`, `cpu`, `cuda:0`, …"""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        """Exactly one output per input, in order; `parameters[i]` belongs to `inputs[i]`.

        An output is whatever JSON can say, a numpy or torch value, or an exception instance, which fails that
        input alone. The lists and what they hold are this batch's own.
        """


def load_model(settings: ModelSettings) -> Model:
    """Find and construct the model; `load` and `warmup` are the caller's to call.

    Raises:
        LoadError: the source leads nowhere, to something that is no model, or does not go with the other
        settings.
    """
    source = settings.source
    if source.startswith(("http://", "https://")):
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
        return model
    if not callable(found):
        raise LoadError(f"{source} is a {type(found).__name__}; it must be a class or a function")
    if settings.options:
        raise LoadError(f"{source} is a function and takes no options; make it a class, or remove {settings.options}")
    if settings.max_batch_size > MAX_FUNCTION_BATCH:
        raise LoadError(
            f"{source} is a function, which takes 1 to {MAX_FUNCTION_BATCH} strings; "
            f"max_batch_size is {settings.max_batch_size}, set it to {MAX_FUNCTION_BATCH} or less"
        )
    from workers.models.function import FunctionModel

    return FunctionModel(found)


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
            raise LoadError(f"no module {error.name!r} for {source!r}; is it on PYTHONPATH?") from None
        raise
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise LoadError(f"module {module_name!r} has no {attribute!r}") from None


def _construct(kind: type[Any], source: str, options: dict[str, Any]) -> Any:
    try:
        return kind(**options)
    except TypeError as error:
        raise LoadError(f"{source} cannot be made with options {options}: {error}") from error

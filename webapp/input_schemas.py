"""Checks requests against the schemas of their model, before anything is queued.

    input, parameters ─▶ InputSchemas.check ─┬─ as declared ─▶ on to admission
                                             └─ InvalidInput (400): `input.tags[3]: the value does not match "^[a-z]+$"`

A plain function whose module can be imported here takes strings. Any other model without a schema has no
`InputSchemas`, and its requests cost one dictionary lookup.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.model_files.schemas import compile_schema, where
from config.model_files.schemes import scheme_of
from config.schema import ModelSettings
from config.settings import Settings
from tasks.errors import InvalidInput

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

# The message may contain the caller's names, as long as a body may be.
_LONGEST = 300


class InputSchemas:
    """The compiled schemas of one model."""

    def __init__(self, model: ModelSettings) -> None:
        self._name = model.name
        self._input = _validator(model.input_schema)
        self._parameters = _validator(model.parameters_schema)

    def check(self, value: object, parameters: dict[str, Any] | None, *, name: str = "input") -> None:
        """Check one request; `name` is the input's name in the body. Raises InvalidInput, which names the place."""
        refusal = self._input_refusal(name, value)
        if refusal is not None:
            raise refusal
        self.check_parameters(parameters)

    def check_parameters(self, parameters: dict[str, Any] | None) -> None:
        """Check the parameters; None counts as an empty object, as the model gets it. Raises InvalidInput."""
        refusal = self._refusal(self._parameters, "parameters", parameters or {})
        if refusal is not None:
            raise refusal

    def refusals(self, inputs: Sequence[object], name: str = "inputs") -> list[InvalidInput | None]:
        """The error of each input of a call with several in the field `name`, None for valid ones."""
        return [self._input_refusal(f"{name}[{at}]", each) for at, each in enumerate(inputs)]

    def _input_refusal(self, name: str, value: object) -> InvalidInput | None:
        return self._refusal(self._input, name, value)

    def _refusal(self, validator: Validator | None, name: str, value: object) -> InvalidInput | None:
        # `is_valid` first: most inputs are valid, and it is the cheaper call.
        if validator is None or validator.is_valid(value):
            return None
        error = _first_error(validator, value)
        text = f"{where(name, error.instance_path)}: {error.message}"
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}…"
        return InvalidInput(f"{text} (GET /v1/models has the input schema of {self._name})")


class Strings(InputSchemas):
    """The check for a plain function, `batchstring(inputs: list[str])`, without a schema: its inputs are strings."""

    def _input_refusal(self, name: str, value: object) -> InvalidInput | None:
        return None if isinstance(value, str) else InvalidInput(f"{name}: {self._name} takes strings; this is not one")


def _first_error(validator: Validator, value: object) -> ValidationError:
    """The first error of an invalid value. `iter_errors` collects all of them first: half a minute for a mebibyte of
    wrong items, where this takes a fraction of a millisecond.
    """
    from jsonschema_rs import ValidationError

    try:
        validator.validate(value)
    except ValidationError as error:
        return error
    raise AssertionError("an invalid value has an error")


def declared_by(settings: Settings) -> dict[str, InputSchemas]:
    """The checks of all models that have a schema or are a plain function."""
    # The same path as `config.model_files.import_path`.
    folder = [str(Path(settings.config_file).parent)] if settings.config_file else []
    path = [*folder, *sys.path]
    declared: dict[str, InputSchemas] = {}
    for name, model in settings.models.items():
        strings = not model.takes_bytes and scheme_of(model.source).takes_strings(model.source, path)
        if model.input_schema is None and strings:
            declared[name] = Strings(model)
        elif model.input_schema is not None or model.parameters_schema is not None:
            declared[name] = InputSchemas(model)
    return declared


def _validator(schema: dict[str, Any] | str | None) -> Validator | None:
    assert not isinstance(schema, str), "the settings read the file"
    return None if schema is None else compile_schema(schema)

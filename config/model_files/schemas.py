"""JSON Schemas that a model declares for its input and its parameters in `bunch.toml`.

    input_schema = { type = "object", … }      in place, or
    input_schema = "schemas/text.json"         a file beside bunch.toml

A schema is compiled where the settings are read, so that a broken one stops the start and not the first request.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from jsonschema_rs import Validator

MASK = "the value"
"""Replaces the input in a validator's messages: the input may be a megabyte long."""


class BrokenSchema(ValueError):
    """A schema that cannot be read or is not a JSON Schema; the text says why, on one line."""


def read_schema(declared: dict[str, Any] | str, folder: Path) -> dict[str, Any]:
    """The schema: the table itself, or the content of the file that it names, relative to `folder`.

    Raises:
        BrokenSchema: the file is missing or holds no JSON object, or `compile_schema` refuses it.
    """
    schema = _from_file(folder / declared) if isinstance(declared, str) else declared
    compile_schema(schema)
    return schema


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise BrokenSchema(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenSchema(f"{path} does not hold a JSON object: {error}") from error


def compile_schema(schema: dict[str, Any]) -> Validator:
    """Compile a validator for JSON Schema 2020-12, or for the draft that `$schema` names. `format` is checked for the
    formats that the drafts define.

    Nothing is fetched: a `$ref` to elsewhere is an error. Patterns are those that take linear time, since callers
    choose the text: no look-around, no back-references.

    Raises:
        BrokenSchema: it is not a schema, or has a reference to something outside it.
    """
    # Imported here, because most models declare no schema.
    import jsonschema_rs

    options: dict[str, Any] = {
        "validate_formats": True,
        "offline": True,
        "pattern_options": jsonschema_rs.RegexOptions(),
    }
    try:
        # The first message names the schema's own values, for the operator; the second is what callers will see.
        jsonschema_rs.validator_for(schema, **options)
        return jsonschema_rs.validator_for(schema, mask=MASK, **options)
    except jsonschema_rs.ValidationError as error:
        raise BrokenSchema(f"at {where('$', error.instance_path)}: {error.message}") from error
    except (ValueError, TypeError) as error:
        # Values that TOML has and JSON has not: dates, NaN and infinities.
        raise BrokenSchema(str(error)) from error


def where(root: str, path: list[str | int]) -> str:
    """`input.tags[3]`."""
    return root + "".join(_steps(path))


def _steps(path: list[str | int]) -> Iterator[str]:
    for step in path:
        yield f"[{step}]" if isinstance(step, int) else f".{step}"

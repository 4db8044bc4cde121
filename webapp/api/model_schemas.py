"""The schemas that models declare, as parts of the API's description.

components/schemas/<model>.input, <model>.parameters     the schemas, as `bunch.toml` has them
components/schemas/<model>.input.<name>                  the schemas under their `$defs`
InferenceBody.allOf: [if model is <model>, then input is <model>.input]
"""

from __future__ import annotations

import re
from typing import Any

from config.model_files.versions import SEPARATOR
from config.schema import ModelSettings
from config.settings import Settings

# Keywords whose content is a caller's value, and no schema.
VALUES = frozenset({"const", "enum", "default", "examples"})
# Names that a component may have, and that need no escaping in a reference.
_COMPONENT = re.compile(r"[A-Za-z0-9._-]+")
_DEFINITIONS = "#/$defs/"


def declare_in(components: dict[str, Any], settings: Settings) -> None:
    """Add the schemas of `settings.models` to `components`, and make the API's bodies refer to them."""
    for model in settings.models.values():
        parts = _add_parts(components, model)
        if not parts:
            continue
        is_default = model.name == settings.default_model
        _narrow(components["InferenceBody"], _when("model", model.name, parts, is_default=is_default))
        if "input" in parts:
            predicted = {"input_data": parts["input"]}
            _narrow(components["PredictBody"], _when("model_id", model.name, predicted, is_default=is_default))
            if is_default:
                _narrow(components["SimpleBody"], {"properties": {"input": parts["input"]}})


def _add_parts(components: dict[str, Any], model: ModelSettings) -> dict[str, Any]:
    """The schema of each field of a body."""
    parts: dict[str, Any] = {}
    for field, schema in (("input", model.input_schema), ("parameters", model.parameters_schema)):
        if not isinstance(schema, dict):
            continue
        # A component's name may have no @.
        name = f"{model.name.replace(SEPARATOR, '.')}.{field}"
        components |= {name: schema} if "$id" in schema else _parted(schema, name)
        parts[field] = {"$ref": f"#/components/schemas/{name}"}
    if "parameters" in parts:
        # If they are left out they count as an empty object.
        parts["parameters"] = {"anyOf": [{"type": "null"}, parts["parameters"]]}
    return parts


def _parted(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Split a schema into components: few tools follow a `$ref` into one, so its `$defs` become components too."""
    place = f"#/components/schemas/{name}"
    definitions = schema.get("$defs")
    if not isinstance(definitions, dict) or not all(map(_COMPONENT.fullmatch, definitions)):
        return {name: _moved(schema, place, "")}
    parts = {f"{name}.{each}": _moved(definition, place, f"{place}.") for each, definition in definitions.items()}
    rest = {key: value for key, value in schema.items() if key != "$defs"}
    return {name: _moved(rest, place, f"{place}."), **parts}


def _moved(schema: Any, place: str, parts: str) -> Any:
    """Rewrite references to `#/…`, the place that the schema had alone. An `$id` would do too, but few tools use it.

    `parts` is the prefix of components that were under `#/$defs/…`; empty if they stay there.
    """
    if isinstance(schema, list):
        return [_moved(each, place, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: each if key in VALUES else _moved(each, place, parts) for key, each in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        of_parts = parts and reference.startswith(_DEFINITIONS)
        moved["$ref"] = parts + reference.removeprefix(_DEFINITIONS) if of_parts else place + reference[1:]
    return moved


def _when(field: str, model: str, parts: dict[str, Any], *, is_default: bool) -> dict[str, Any]:
    named: dict[str, Any] = {"properties": {field: {"const": model}}, "required": [field]}
    if is_default:
        named = {"properties": {field: {"enum": [model, None]}}}
    return {"if": named, "then": {"properties": parts}}


def _narrow(body: dict[str, Any], rule: dict[str, Any]) -> None:
    body.setdefault("allOf", []).append(rule)

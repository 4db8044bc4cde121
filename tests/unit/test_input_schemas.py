"""A model's declarations about its requests: read with the settings, compiled once, held against each request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from config.errors import SettingsError
from config.model_files.schemas import compile_schema
from config.schema import ModelSettings, Settings
from config.settings import load_settings
from tasks.errors import InvalidInput
from webapp.api.openapi import describe
from webapp.input_schemas import InputSchemas, declared_by
from webapp.routes import ROUTES

MODEL = '[models.m]\nsource = "workers.models.echo:Echo"\n'
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}


def load(folder: Path, text: str) -> Settings:
    path = folder / "bunch.toml"
    path.write_text(MODEL + text, encoding="utf-8")
    return load_settings({}, str(path))


def problem_of(folder: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(folder, text)
    (problem,) = caught.value.problems
    return str(problem)


def model(**schemas: Any) -> ModelSettings:
    return ModelSettings(name="m", source="a:B", **schemas)


def refusal(value: object, parameters: dict[str, Any] | None = None, **schemas: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        InputSchemas(model(**schemas)).check(value, parameters)
    return caught.value.message


def test_in_place_or_in_a_file_beside_the_settings(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "text.json").write_text(json.dumps(TEXT))
    written = 'input_schema = "schemas/text.json"\nparameters_schema = { type = "object", maxProperties = 1 }'
    found = load(tmp_path, written).models["m"]
    assert found.input_schema == TEXT
    assert found.parameters_schema == {"type": "object", "maxProperties": 1}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ('input_schema = { type = "strin" }', "at $.type: "),
        ('input_schema = { properties = { a = { minimum = "x" } } }', "at $.properties.a.minimum: "),
        ('input_schema = { "$ref" = "#/$defs/none" }', "'/$defs/none' does not exist"),
        ('input_schema = { "$ref" = "http://127.0.0.1:1/schema" }', "Retrieval is disabled"),
        ('input_schema = { "$ref" = "file:///etc/hostname" }', "Retrieval is disabled"),
        ('input_schema = { "$schema" = "http://nowhere.example/draft" }', "Unknown meta-schema"),
        ('input_schema = { pattern = "(a" }', "at $.pattern: "),
        # It could take callers' text an exponential time.
        ('input_schema = { pattern = "(?=a)b" }', "at $.pattern: "),
        ("input_schema = { const = 2026-01-01 }", "date"),
        ('parameters_schema = "none.json"', "none.json cannot be read"),
        ('parameters_schema = "bunch.toml"', "does not hold a JSON object"),
        ("parameters_schema = 5", "Expected"),
    ],
)
def test_a_broken_one_stops_the_start(tmp_path: Path, written: str, says: str) -> None:
    problem = problem_of(tmp_path, written)
    assert problem.startswith("[models.m] " + written.split(" ", maxsplit=1)[0])
    assert says in problem
    assert "\n" not in problem


def test_where_it_is_wrong_and_not_what_was_sent() -> None:
    schema = {"properties": {"rows": {"items": {"properties": {"n": {"type": "integer"}}}}}}
    message = refusal({"rows": [{"n": 1}, {"n": "secret"}]}, input_schema=schema)
    assert message.startswith('input.rows[1].n: the value is not of type "integer"')
    assert "secret" not in message
    assert "GET /v1/models" in message


def test_parameters_that_are_left_out_are_an_empty_object() -> None:
    schema = {"required": ["top"]}
    assert refusal(1, None, parameters_schema=schema).startswith('parameters: "top" is a required property')
    InputSchemas(model(parameters_schema=schema)).check(1, {"top": 1})


def test_a_message_is_bounded_whatever_a_caller_calls_things() -> None:
    names = {"x" * 50_000: 1}
    schema = {"additionalProperties": {"type": "string"}, "propertyNames": {"maxLength": 60_000}}
    assert len(refusal(names, input_schema=schema)) < 400
    assert len(refusal(names, input_schema={"additionalProperties": False})) < 400


def test_other_drafts_by_their_name() -> None:
    draft7 = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}
    assert refusal([1], input_schema=draft7).startswith("input[0]: ")


def test_numbers_and_depths_that_a_body_may_have() -> None:
    nested: list[Any] = []
    for _ in range(200):
        nested = [nested]
    anything = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}
    InputSchemas(model(input_schema=anything)).check(nested, None)
    assert refusal(10**400, input_schema={"maximum": 5}).startswith("input: the value is greater")


def test_only_who_declares_something_is_looked_at() -> None:
    plain = ModelSettings(name="plain", source="a:B")
    strict = model(input_schema=TEXT)
    assert set(declared_by(Settings(models={"plain": plain, "m": strict}))) == {"m"}


@pytest.mark.parametrize("default", ["m", "other"])
def test_the_description_holds_bodies_to_it(default: str) -> None:
    """Asked as a client would: the whole document's own schema of the body is a validator for it."""
    schema = {"$defs": {"text": {"type": "string"}}, "properties": {"text": {"$ref": "#/$defs/text"}}}
    models = {"m": model(input_schema=schema, parameters_schema={"maxProperties": 1})}
    models["other"] = ModelSettings(name="other", source="a:B")
    document = describe(Settings(models=models, default_model=default), ROUTES)

    def takes(body: str, **fields: object) -> bool:
        whole = {"$ref": f"#/components/schemas/{body}", "components": document["components"]}
        return jsonschema_rs.validator_for(whole).is_valid(fields)

    assert takes("InferenceBody", model="m", input={"text": "a"}, parameters={"a": 1})
    assert not takes("InferenceBody", model="m", input={"text": 1})
    assert not takes("InferenceBody", model="m", input={}, parameters={"a": 1, "b": 2})
    assert takes("InferenceBody", model="other", input={"text": 1})
    assert takes("InferenceBody", input={"text": 1}) is (default != "m")
    assert not takes("PredictBody", model_id="m", input_data={"text": 1})


def test_a_schema_is_compiled_without_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafts themselves are known by heart."""
    schema = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    assert compile_schema(schema).is_valid({"type": "string"})


def test_a_function_beside_the_file_takes_strings_whatever_else_it_declares(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def batchstring(inputs):\n    return inputs\n\n\nclass Model:\n    pass\n")
    settings = load(
        tmp_path,
        '[models.f]\nsource = "beside:batchstring"\nparameters_schema = { maxProperties = 1 }\n'
        '[models.own]\nsource = "beside:batchstring"\ninput_schema = { maxLength = 3 }\n'
        '[models.c]\nsource = "beside:Model"\n[models.unseen]\nsource = "elsewhere:batchstring"\n'
        '[models.api]\nsource = "http://127.0.0.1:1/"\n',
    )
    declared = declared_by(settings)
    assert set(declared) == {"f", "own"}
    declared["f"].check("text", {"a": 1})
    with pytest.raises(InvalidInput, match="input: f takes strings"):
        declared["f"].check(3, None)
    with pytest.raises(InvalidInput, match="parameters"):
        declared["f"].check("text", {"a": 1, "b": 2})
    assert [each is None for each in declared["f"].refusals(["a", 1])] == [True, False]
    with pytest.raises(InvalidInput, match="longer than 3"):
        declared["own"].check("text", None)

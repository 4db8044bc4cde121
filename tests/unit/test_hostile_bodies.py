"""Bodies of any shape are read in time that grows with their size, and with nothing else."""

from __future__ import annotations

import gc
import io
import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.schema import ModelSettings
from tasks.client.dedup import canonical
from tasks.errors import BunchError
from tasks.protocol.json_structure import MAX_PARTS, structure, too_many_parts
from tests.bodies import SHAPES
from webapp.body_budget import BodyBudget
from webapp.errors import ApiError
from webapp.input_schemas import InputSchemas
from webapp.parsing import InferenceBody, as_json, read_body
from webapp.request import HttpRequest

_decoder = msgspec.json.Decoder(InferenceBody)
_SIZE = 200_000
_CHECKED = ("numbers", "short strings", "small arrays", "many names", "nested", "a long model")
_SCHEMAS: dict[str, dict[str, Any]] = {
    "none": {},
    "of its items": {"items": {"type": "string"}},
    "one of some": {"items": {"oneOf": [{"type": "string"}, {"type": "object"}, {"type": "boolean"}]}},
    "unlike each other": {"uniqueItems": True},
    "no other names": {"type": "object", "additionalProperties": False},
    "a pattern": {"pattern": "^(a+)+$"},
    "a format": {"items": {"format": "email"}, "format": "email"},
}


def _prepared(raw: bytes, declared: InputSchemas) -> str:
    """All that the frontend does with a body before the queue; what came of it."""
    environ = {"wsgi.input": io.BytesIO(raw), "CONTENT_LENGTH": str(len(raw)), "CONTENT_TYPE": "application/json"}
    refused: ApiError | BunchError | None = None
    try:
        body = read_body(HttpRequest(environ), _decoder, BodyBudget(lambda _: 0.0))
        declared.check(body.input, body.parameters)
        canonical(as_json(body.input))
    except (ApiError, BunchError) as error:
        refused = error
    assert refused is None or len(refused.message) < 1000, "a caller is not told a megabyte of its own"
    return "taken" if refused is None else refused.code


def _took_s(raw: bytes, declared: InputSchemas) -> float:
    """Processor time: what else runs on the machine does not count. The best of three, as nothing makes it faster."""
    best = float("inf")
    # A collection walks over all that the test run has made so far.
    gc.disable()
    try:
        for _ in range(3):
            began = time.process_time()
            _prepared(raw, declared)
            best = min(best, time.process_time() - began)
    finally:
        gc.enable()
    return best


def _declared(schema: dict[str, Any]) -> InputSchemas:
    return InputSchemas(ModelSettings(name="m", source="a:B", input_schema=schema or None))


@pytest.mark.parametrize(
    ("shape", "schema"),
    [(shape, "none") for shape in SHAPES]
    + [(shape, schema) for shape in _CHECKED for schema in _SCHEMAS if schema != "none"],
)
def test_twice_the_body_takes_twice_the_time(shape: str, schema: str) -> None:
    declared = _declared(_SCHEMAS[schema])
    make = SHAPES[shape]
    # A square would take four times as long; what takes next to nothing is measured badly.
    for _ in range(4):
        once, twice = (_took_s(make(size), declared) for size in (_SIZE, 2 * _SIZE))
        if twice < 3 * once + 0.01:
            break
    else:
        pytest.fail(f"{once * 1000:.1f} ms for {_SIZE} bytes, {twice * 1000:.1f} ms for twice as many")


def test_the_shapes_are_allowed_bodies_of_about_that_size() -> None:
    for name, make in SHAPES.items():
        assert _SIZE / 2 < len(make(_SIZE)) <= _SIZE, name
        assert len(make(1_048_576)) <= 1_048_576, name


@pytest.mark.parametrize(
    ("shape", "code"),
    [
        ("numbers", "taken"), ("small arrays", "taken"), ("many names", "taken"), ("short strings", "taken"),
        ("brackets in strings", "taken"), ("colons in strings", "taken"), ("nested", "taken"),
        ("escaped names", "taken"), ("fields that nobody knows", "taken"), ("white space", "taken"),
        ("one name twice", "INVALID_JSON"), ("every name twice", "INVALID_JSON"),
        ("the same name all over", "INVALID_JSON"), ("nested without end", "INVALID_JSON"),
        ("not closed", "INVALID_JSON"), ("not JSON", "INVALID_JSON"), ("not UTF-8", "INVALID_JSON"),
        ("whole numbers of 5,000 digits", "INVALID_INPUT"),
    ],
)  # fmt: skip
def test_what_comes_of_them(shape: str, code: str) -> None:
    assert _prepared(SHAPES[shape](_SIZE), _declared({})) == code


_names = st.sampled_from(["a", "b", ":", '"', "\\", "[", "{}", "\\u003a", "é"])
_plain = _names | st.integers(0, 9)
_shallow = _plain | st.lists(_plain, max_size=3) | st.dictionaries(_names, _plain, max_size=3)
_values = _shallow | st.lists(_shallow, max_size=3) | st.dictionaries(_names, _shallow, max_size=3)


@given(_values, st.booleans())
def test_the_structure_is_what_stands_outside_of_strings(value: object, ascii_only: bool) -> None:
    text = json.dumps({"v": value}, ensure_ascii=ascii_only)
    expected = []
    in_string = escaped = False
    for each in text:
        if in_string:
            in_string = escaped or each != '"'
            escaped = each == "\\" and not escaped
        elif each == '"':
            in_string = True
        elif each in "[{]}:":
            expected.append(each)
    assert structure(text.encode()).decode() == "".join(expected)


@pytest.mark.parametrize("unit", [b"[]", b"{}", b'{"a":0}'])
def test_names_arrays_and_objects_are_counted(unit: bytes) -> None:
    parts = unit.count(b"[") + unit.count(b"{") + unit.count(b":")
    room = (MAX_PARTS - 1) // parts
    assert not too_many_parts(b"[" + b",".join([unit] * room) + b"]")
    assert too_many_parts(b"[" + b",".join([unit] * (room + 1)) + b"]")


def test_those_in_strings_are_not() -> None:
    assert not too_many_parts(b'["' + b"[{:" * MAX_PARTS + b'", "\\"", "' + b":" * MAX_PARTS + b'"]')

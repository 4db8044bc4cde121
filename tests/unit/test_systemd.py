"""The units of deploy/systemd against systemd's own tool, and against the program that they start."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from cli.commands import cli
from cli.supervisor.stack import Stack
from config.environ import ROOT
from config.schema import Settings
from config.settings import load_settings

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
TARGET = ROOT / "deploy" / "systemd" / "bunch.target"
ROLES = ("web", "grpc", "ops", "flower")
# The stages in which `up` stops its processes: frontend, workers, ops, each with its time; Flower and Valkey.
DRAINING_STAGES, FLOWER_S, VALKEY_S = 3, 5, 30


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)


def verify(folder: Path, *arguments: str) -> None:
    """Run systemd-analyze on the units, with a program that is there in place of ours."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED: systemd-analyze is missing; apt-get install systemd")
    for unit in (*UNITS, TARGET):
        (folder / unit.name).write_text(unit.read_text().replace("/opt/bunch/bin/bunch", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", *arguments], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr


def test_systemd_takes_the_units_as_they_are(tmp_path: Path) -> None:
    names = ["bunch.service", "bunch-role@web.service", "bunch-worker@1.service", "bunch.target"]
    verify(tmp_path, "verify", "--man=no", *(f"./{name}" for name in names))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_may_touch_little(tmp_path: Path, unit: Path) -> None:
    # A web server without any of this has 9.6; 4.0 is "OK" in systemd's words.
    verify(tmp_path, "security", "--offline=true", "--no-pager", "--threshold=40", f"./{unit.name}")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_there_is(unit: Path) -> None:
    (line,) = values(unit, "ExecStart")
    program, name, *options = line.split()
    assert program == "/opt/bunch/bin/bunch"
    for each in ROLES if name == "%i" else (name,):
        command = cli.get_command(click.Context(cli), each)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert {option.partition("=")[0] for option in options} <= known


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_has_settings_that_hold_and_a_place_for_its_state(unit: Path) -> None:
    pairs = [pair.split("=", 1) for line in values(unit, "Environment") for pair in line.split()]
    settings = load_settings({name: value.replace("%S", "/var/lib") for name, value in pairs}, str(ROOT / "bunch.toml"))
    (folder,) = values(unit, "StateDirectory")
    assert settings.state_dir == f"/var/lib/{folder}"
    # An executor that the kernel kills for its memory would otherwise end the unit.
    assert values(unit, "OOMPolicy") == ["continue"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_has_the_time_to_drain(unit: Path) -> None:
    drain_s = Stack._drain_s.fget(type("_", (), {"settings": Settings()}))  # type: ignore[attr-defined]
    stack_s = DRAINING_STAGES * drain_s + FLOWER_S + VALKEY_S
    (timeout,) = map(int, values(unit, "TimeoutStopSec"))
    assert timeout > (stack_s if unit.name == "bunch.service" else drain_s)
    assert values(unit, "KillMode") == ["mixed"]

"""Differences between hosts, in the register of processes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from config.settings import ModelSettings
from config.version import VERSION
from tasks.fleet.process_register import RoleRow, differences, fingerprint, fingerprints

MODEL = ModelSettings(name="m", source="a:B", options={"x": 1, "y": [1, 2]})


def row(name: str, models: dict[str, ModelSettings], **more: str) -> RoleRow:
    return RoleRow(name, "worker", name, "host", 1, 0.0, models=fingerprints(models), **more)  # type: ignore[arg-type]


def test_a_fingerprint_is_of_the_settings_and_not_of_how_they_are_written() -> None:
    turned = msgspec.structs.replace(MODEL, options={"y": [1, 2], "x": 1})
    assert fingerprint(turned) == fingerprint(MODEL)
    for change in ({"options": {"x": 1, "y": [2, 1]}}, {"timeout_ms": 2999}, {"version": "2"}, {"source": "a:C"}):
        assert fingerprint(msgspec.structs.replace(MODEL, **change)) != fingerprint(MODEL)


def test_hosts_that_are_alike_differ_in_nothing() -> None:
    assert differences([row("w1", {"m": MODEL}), row("w2", {"m": MODEL})]) == []
    assert differences([]) == []


def test_another_setting_and_a_missing_model_are_said_with_who_has_them() -> None:
    other = msgspec.structs.replace(MODEL, max_batch_size=1)
    more = ModelSettings(name="n", source="a:B")
    found = differences([row("w1", {"m": MODEL, "n": more}), row("w2", {"m": MODEL}), row("w3", {"m": other})])
    assert found == [
        f"m is configured differently: {fingerprint(MODEL)} on w1, w2; {fingerprint(other)} on w3",
        f"n is configured differently: without it on w2, w3; {fingerprint(more)} on w1",
    ]


def test_different_versions_are_said() -> None:
    (found,) = differences([row("w1", {}), row("w2", {}, version="0.0.9")])
    assert found == f"different versions of Bunch run: {VERSION} on w1; 0.0.9 on w2"


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION

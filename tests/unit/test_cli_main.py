"""The command line loads what the command at hand needs, and nothing to list, complete or explain commands."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from cli.commands import COMMANDS, cli
from config.environ import ROOT

# Each takes longer to load than a press of Tab may last.
HEAVY = (
    "celery", "flask", "gevent", "hypothesis", "kombu", "matplotlib", "numpy", "opentelemetry", "prometheus_client",
    "psutil", "redis", "rich", "sqlalchemy", "torch",
)  # fmt: skip
# Not lazy yet: their options come from modules of the simulator. A picture of a load test is drawn while it runs.
NEEDS = {
    "bench": {"rich"},
    "simulate": {"numpy", "opentelemetry", "psutil", "redis"},
    "plan": {"numpy", "opentelemetry", "psutil", "redis"},
}
LOADED = """
import contextlib, io, json, sys
from cli.commands import cli
with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.suppress(SystemExit):
    cli(sys.argv[1:], prog_name="manage.py")
print(json.dumps([name for name in json.loads(sys.stdin.read()) if name in sys.modules]))
"""


def loaded_by(*arguments: str, environ: dict[str, str] | None = None) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        cwd=ROOT, input=json.dumps(HEAVY), env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_list_of_commands_loads_none_of_them() -> None:
    assert loaded_by("--help") == []


def test_a_command_that_does_not_exist_loads_nothing() -> None:
    assert loaded_by("quues") == []


@pytest.mark.parametrize("words", ["manage.py ", "manage.py pause ", "manage.py status --"])
def test_completion_loads_nothing_heavy(words: str) -> None:
    environ = {"_MANAGE_PY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert set(loaded_by(environ=environ)) <= ({"redis"} if "pause" in words else set())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_loads_only_what_its_options_are_made_of(command: str) -> None:
    assert set(loaded_by(command, "--help")) <= NEEDS.get(command, set())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_the_first_line_of_its_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(1000) == COMMANDS[name][1]


@pytest.mark.parametrize(
    ("typed", "meant"), [(["quues"], "queues"), (["simluate"], "simulate"), (["check", "--jsn"], "--json")]
)
def test_a_slip_of_the_finger_is_told_what_was_meant(typed: list[str], meant: str) -> None:
    done = CliRunner().invoke(cli, typed)
    assert done.exit_code == 2
    assert meant in done.output


def test_what_there_is_begins_as_typed() -> None:
    found = cli.shell_complete(click.Context(cli), "re")
    assert {item.value for item in found} == {name for name in COMMANDS if name.startswith("re")}


def test_the_grpc_role_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("config.installation.is_installed", lambda name: name != "grpc_health")
    for arguments in (["grpc"], ["up", "--grpc"]):
        result = CliRunner().invoke(cli, arguments)
        assert (result.exit_code, "grpc_health is not installed" in result.output) == (1, True)
        assert "pip install -r requirements-grpc.txt" in result.output

"""Documentation and code name the same things: what the code has is documented, and what is documented exists.

Each test reads the code's own table (the settings' schema, the metrics, the click tree, the routes, the error codes)
and the page's table, and compares the two as wholes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from prometheus_client.metrics import MetricWrapperBase

import batching.script_args
import tasks.script_args
from batching.policy import POLICIES, Shed, knobs, make
from cli.commands import cli
from config.schema import ModelSettings, Settings
from config.secrets.secret_settings import FILE, SECRET_FIELDS
from tasks.celery.control_commands import COMMANDS
from tasks.client.admission_codes import Status
from tasks.errors import RateLimited
from tasks.observability import metrics
from webapp.api.openapi import describe
from webapp.errors import STATUS_OF
from webapp.http.errors import RequestRefusedError
from webapp.identity.base import Access
from webapp.routes import ROUTES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("gpus/*.md"))]
EVERYTHING = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
# Set for the processes that we start, or read before there are settings; `config.settings` says so as well.
NOT_SETTINGS = {"BUNCH_CONFIG", "BUNCH_NATIVE"}
FROM_THE_FILE = {"models", "pools", "default_model", "config_file", "worker_pool", "worker_models"}
# Messages of others that the operators' pages quote.
FOREIGN = {
    # redis-py, Redis
    "Timeout reading from socket",
    "OOM command not allowed",
    "You can't write against a read only replica",
    # Celery, gunicorn
    "Connection to broker lost",
    "Worker (pid:…) was sent SIGKILL",
    # The kernel, dmesg, Kubernetes
    "Out of memory: Killed process … oom_score_adj:800",
    "Memory cgroup out of memory: Killed process …",
    "exceed data ulimit",
    "read kernel buffer failed",
    "OOMKilled",
}


def section(page: str, heading: str) -> str:
    """The text under one heading, without its subsections."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", EVERYTHING[page], re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no section {heading!r}"
    return found[1]


SETTINGS = section("operations.md", "Settings") + section("security.md", "JSON Web Tokens")


def rows(text: str, columns: int) -> Iterator[list[str]]:
    """The rows of the tables with so many columns, without their heads."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == columns and "`" in cells[0]:
            yield cells


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def commands(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that can be run, by its words."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


def setting_names() -> set[str]:
    fields = {field.name for field in msgspec.structs.fields(Settings)} - FROM_THE_FILE
    return {f"BUNCH_{name.upper()}" for name in fields}


def test_every_setting_has_a_row_and_every_row_is_a_setting() -> None:
    listed = {name for row in rows(SETTINGS, 3) for name in names(row[0]) if name.startswith("BUNCH_")}
    assert listed - NOT_SETTINGS == setting_names()


def test_every_setting_that_a_page_mentions_exists() -> None:
    files = {f"BUNCH_{name.upper()}{FILE.upper()}" for name in SECRET_FIELDS}
    for page, text in EVERYTHING.items():
        # `BUNCH_…_MS` stands for several.
        mentioned = set(re.findall(r"BUNCH_[A-Z0-9_]*[A-Z0-9](?![A-Z0-9_…])", text))
        assert mentioned <= setting_names() | files | NOT_SETTINGS, page


def test_the_defaults_in_the_tables_are_those_of_the_schema() -> None:
    defaults = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    for row in rows(SETTINGS, 3):
        keys = [name for name in names(row[0]) if name in setting_names()]
        if not keys:
            continue
        # `0: no limit`, `unset: …`: what follows the colon says what the default comes to.
        given = [each.strip("` ") for each in row[1].partition(":")[0].split(",")]
        for key, text in zip(keys, given if len(given) > 1 else given * len(keys), strict=True):
            default = defaults[key.removeprefix("BUNCH_").lower()]
            if isinstance(default, bool):
                assert text == str(default).lower(), key
            elif isinstance(default, int | float):
                assert float(text) == default, key
            elif default:
                assert text == default, key
            else:
                assert not text.isdigit(), key


def test_every_key_of_a_model_has_a_row_with_its_default_and_every_row_is_a_key() -> None:
    fields = {field.name: field for field in msgspec.structs.fields(ModelSettings) if field.name != "name"}
    listed = {key: row[1] for row in rows(section("operations.md", "Models"), 3) for key in names(row[0])}
    assert listed.keys() == fields.keys()
    for key, text in listed.items():
        default: Any = fields[key].default
        if isinstance(default, bool):
            assert text == f"`{str(default).lower()}`", key
        elif isinstance(default, int | float):
            assert float(text.split(":")[0]) == default, key
        elif isinstance(default, str):
            assert text == f'`"{default}"`', key


def test_every_policy_is_described_with_its_options_and_their_defaults() -> None:
    described = [name for row in rows(section("policies.md", "Policies"), 3) for name in names(row[0])]
    assert described == list(POLICIES)
    listed = {}
    for cell, options in rows(section("policies.md", "Settings"), 2):
        for name in names(cell):
            listed[name] = dict(re.findall(r"`(\w+)` (\(none|[\d.]+)", options))
    assert listed.keys() == POLICIES.keys()
    for name, options in listed.items():
        own = {
            key: "(none" if value == float("inf") else f"{value:g}"
            for key, value in knobs(make(name, 64, None, {})).items()
            if key != "max_batch_size"
        }
        assert options == own, name


def test_every_metric_has_a_row_with_its_labels_and_every_row_is_a_metric() -> None:
    declared = {}
    for each in vars(metrics).values():
        if isinstance(each, metrics.Reading):
            declared[each.family().name] = (each.family().type, list(each.labels))
        elif isinstance(each, MetricWrapperBase):
            declared[each._name] = (each._type, list(each._labelnames))
    listed = {}
    for name, kind, labels, _ in rows(section("reference.md", "Metrics"), 4):
        listed[names(name)[0].removesuffix("_total")] = (kind, names(labels))
        assert names(name)[0].endswith("_total") == (kind == "counter"), name
    assert listed == declared


@pytest.mark.parametrize("page", EVERYTHING)
def test_every_metric_that_a_page_mentions_exists(page: str) -> None:
    samples = {name for row in rows(section("reference.md", "Metrics"), 4) for name in names(row[0])}
    # Headers of a message, Celery's remote-control commands, keys of the API.
    others = {"bunch_owner", "bunch_once", "bunch_seal", *COMMANDS}
    for name in re.findall(r"`(bunch_[a-z_]+)(?:\{[^`]*\})?`", EVERYTHING[page]):
        assert {name, re.sub("_(bucket|count|sum)$", "", name)} & (samples | others), name


def test_every_command_has_a_row_and_every_row_is_a_command() -> None:
    listed = [name for row in rows(section("reference.md", "Commands"), 2) for name in names(row[0])]
    assert sorted(listed) == sorted(name for name, _ in commands())


@pytest.mark.parametrize("page", EVERYTHING)
def test_every_command_line_in_a_page_can_be_parsed(page: str) -> None:
    known = dict(commands())
    groups = {name.split()[0] for name in known}
    for line in re.findall(r"manage\.py ((?:[a-z]|\[?--)[^`\n#│]*)", EVERYTHING[page]):
        words = re.findall(r"--?[a-z][\w-]*|[\w./:=-]+", line)
        name = words[0] if words[0] in known else " ".join(words[:2])
        if words[0] in groups and name not in known:
            # A group by itself: `manage.py dlq`.
            assert words[0] not in known, line
            continue
        assert name in known, line
        options = {option for each in known[name].params for option in each.opts} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= options, line


def test_every_endpoint_has_a_row_with_whom_it_is_for_and_every_row_is_an_endpoint() -> None:
    routes = {f"{route.method} {route.template}": route.access for route in ROUTES}
    listed = {names(row[0])[0]: Access[row[1].upper()] for row in rows(section("reference.md", "Endpoints"), 3)}
    assert listed == routes


def test_every_endpoint_that_a_page_mentions_exists() -> None:
    routes = {f"{route.method} {route.path}" for route in ROUTES}
    patterns = [re.compile(re.sub("<[^>]+>", "[^/]+", route)) for route in routes]
    for page, text in EVERYTHING.items():
        for line in re.findall(r"`((?:GET|POST|DELETE|PUT|PATCH) /[^`?]*)", text):
            assert any(pattern.fullmatch(line.strip()) for pattern in patterns), f"{page}: {line}"


def test_every_error_code_has_a_row_with_its_statuses_and_every_row_is_a_code() -> None:
    statuses = {code: {status} for code, status in STATUS_OF.items()}
    for refusal in RequestRefusedError.__subclasses__():
        statuses[refusal.code].add(int(refusal.status[:3]))
    listed = {}
    for code, given, _ in rows(section("reference.md", "Error codes"), 3):
        listed[names(code)[0]] = {int(each) for each in given.split(",")}
    assert listed == statuses


def test_every_error_code_that_a_page_mentions_has_that_status() -> None:
    listed = {names(row[0])[0]: row[1] for row in rows(section("reference.md", "Error codes"), 3)}
    for page, text in EVERYTHING.items():
        for status, code in re.findall(r"\b([45]\d\d) `([A-Z_]+)`", text):
            assert status in listed.get(code, ""), f"{page}: {status} {code}"


def test_the_description_of_the_api_names_no_code_that_is_not_there() -> None:
    text = msgspec.json.encode(describe(Settings(), ROUTES)).decode()
    assert set(re.findall(r"\b[A-Z]{3,}_[A-Z_]+\b", text)) <= STATUS_OF.keys()


def test_every_reason_of_a_refusal_has_a_row_and_every_row_is_a_reason() -> None:
    listed = {name: row[1] for row in rows(section("operations.md", "Too much to do"), 4) for name in names(row[0])}
    errors = {status.reason: status.error for status in Status if status.error}
    # By `tasks.client.client_limit`, before the script is asked.
    errors[Shed.CLIENT.value] = RateLimited
    assert errors.keys() == {each.value for each in Shed}
    assert listed == {reason: str(STATUS_OF[error.code]) for reason, error in errors.items()}


def test_every_remote_control_command_has_a_row_and_every_row_is_a_command() -> None:
    listed = {name for row in rows(section("celery.md", "Watch"), 3) for name in names(row[0])}
    # Celery's own word, of which the text says what it does here.
    assert listed == COMMANDS.keys() - {"pool_restart"}
    assert "pool_restart" in EVERYTHING["celery.md"]


def our_texts() -> str:
    """Every string of our code; what a placeholder stands for is a line break."""
    found: list[str] = []
    for package in ("batching", "bunch", "cli", "config", "tasks", "webapp", "workers"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "\n" for part in node.values]
                    found.append("".join(str(part) for part in parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(re.sub(r"%[a-z]", "\n", node.value))
    found += [each.read_text(encoding="utf-8") for each in (ROOT / "webapp/ops/static").glob("*.js")]
    return "\n".join(found)


@pytest.mark.parametrize("page", ["oncall.md", "operations.md"])
def test_every_message_that_an_operators_page_quotes_is_written_by_us(page: str) -> None:
    texts = our_texts()
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", EVERYTHING[page], flags=re.DOTALL | re.MULTILINE)
    quoted = {" ".join(each.split()) for each in re.findall(r'"([^"]{6,})"', prose)}
    assert len(quoted) > 5
    for message in quoted - FOREIGN:
        # `N`, `…` and values stand for what is filled in.
        pieces = re.split(r"…|\bN\b|: |\b[A-Z]{3,}\b|\w+ = \d+|\w*\d+(?: min)?", message)
        assert all(piece.strip() in texts for piece in pieces), message


def test_every_script_is_among_what_is_atomic_and_every_row_is_a_script() -> None:
    section = EVERYTHING["architecture.md"].partition("## What is atomic\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)\.lua` \|", section, re.MULTILINE)
    assert sorted(rows) == sorted({each.name for each in (*batching.script_args.ALL, *tasks.script_args.ALL)})

"""Clients that people have already, unchanged, against one real stack with keys."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.supervisor.ports import free_port
from tests.benchmarks.venvs import VenvFailedError, pins_of, python_of
from tests.e2e.client import connected
from tests.e2e.stack import ROOT, Stack
from tests.waiting import wait_until

HERE = Path(__file__).parent
VENVS = ROOT / "var" / "clients"
PAGE = ROOT / "docs" / "clients.md"
CLIENTS = sorted(each.parent.name for each in HERE.glob("*/requirements.txt"))
MODELS = """\
default_model = "minilm"

[models.minilm]
source = "workers.models.minilm:MiniLM"
timeout_ms = 30000

[models.fake]
source = "tests.fakes.embedder:Embedder"

[models.slow]
source = "tests.fakes.embedder:SlowEmbedder"

[models.narrow]
source = "tests.fakes.embedder:SlowEmbedder"
max_batch_size = 1
max_queue_depth = 1

[models.echo]
source = "workers.models.echo:Echo"

[models.tensors]
source = "workers.models.echo:Echo"
inputs = [
  { name = "a", datatype = "FP32", shape = [-1, 2] },
  { name = "b", datatype = "BYTES" },
  { name = "h", datatype = "FP16", shape = [1] },
  { name = "i", datatype = "INT64" },
  { name = "t", datatype = "BOOL", shape = [2] },
]
outputs = [
  { name = "a", datatype = "FP32", shape = [-1, 2] },
  { name = "b", datatype = "BYTES" },
  { name = "h", datatype = "FP16", shape = [1] },
  { name = "i", datatype = "INT64" },
  { name = "t", datatype = "BOOL", shape = [2] },
]
"""
# The packages of the role `grpc` are not among those of the others.
HAS_GRPC = importlib.util.find_spec("grpc") is not None


@dataclass
class Served:
    url: str
    key: str
    limited: str
    grpc: str
    found: dict[str, dict[str, str]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    stack = Stack(tmp_path_factory.mktemp("clients"), MODELS)
    try:
        options = ("--web-workers=1", "--no-flower", *(("--grpc",) if HAS_GRPC else ()))
        grpc_port = free_port()
        stack.start(*options, auth="keys", queue_timeout_ms=9000, grpc_port=grpc_port)
        keys = [
            json.loads(stack.manage("keys", "create", "--tier=paid", "--json", *limits).stdout)["secret"]
            for limits in (("--rpm=100000",), ("--rpm=60", "--burst=2"))
        ]
        with connected(stack.port) as api:
            for model in ("minilm", "fake", "slow", "narrow", "echo", "tensors"):
                wait_until(lambda: api.get(f"/readyz?model={model}").status == 200, what=f"{model} is ready")  # noqa: B023
        each = Served(stack.url, *keys, f"127.0.0.1:{grpc_port}")
        yield each
        stack.stop()
        if each.found.keys() == set(CLIENTS):
            write(each.found)
    finally:
        stack.kill()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_works_as_it_is(served: Served, name: str) -> None:
    if name.endswith("_grpc") and not HAS_GRPC:
        pytest.skip(f"NOT TESTED: {name} needs requirements-grpc.txt here")
    try:
        python = python_of(name, HERE, VENVS)
    except VenvFailedError as error:
        pytest.skip(f"NOT TESTED: {name} cannot be installed: {error}")
    ours = {"PYTHONPATH": str(HERE / "common"), "HAYSTACK_TELEMETRY_ENABLED": "false", "GRPC": served.grpc}
    environment = os.environ | ours
    done = subprocess.run(
        [python, HERE / name / "script.py", served.url, served.key, served.limited],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.stdout.strip(), done.stderr[-3000:]
    found = served.found[name] = json.loads(done.stdout.strip().splitlines()[-1])
    assert found
    failed = {check: error for check, error in found.items() if error}
    assert not failed, "\n".join(f"{check}\n{error}" for check, error in failed.items())


def write(found: dict[str, dict[str, str]]) -> None:
    """Put the table into the page, between its marks."""
    rows = ["| client | what works |", "|---|---|"]
    for name, checks in found.items():
        works = "; ".join(check for check, error in checks.items() if not error)
        fails = "; ".join(check for check, error in checks.items() if error)
        pins = "<br>".join(f"`{pin}`" for pin in pins_of(name, HERE).split())
        rows.append(f"| {pins} | {works}{f'. **Not**: {fails}' if fails else ''} |")
    begin, end = "<!-- clients: begin -->", "<!-- clients: end -->"
    table = "\n".join([begin, *rows, end])
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(f"{begin}.*{end}", lambda _: table, page, flags=re.DOTALL), encoding="utf-8")
    logging.getLogger(__name__).info("%s has the table", PAGE)

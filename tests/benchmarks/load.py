"""Load from `wrk`, a closed loop: N connections, each sending its next request on the answer to the last.

Latencies are of the requests that were answered within the run. `wrk` corrects its percentiles for coordinated
omission, assuming that each connection should be answered at its mean rate.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import click

from tests.benchmarks import cores
from tests.benchmarks.shapes import SMALL_BYTES, Shape

logger = logging.getLogger(__name__)

# Long enough that answers of a slow system are measured rather than counted as lost.
_TIMEOUT_S = 10
_SCRIPT = Path(__file__).parent / "wrk" / "infer.lua"


class WrkMissingError(click.ClickException):
    """`wrk` is not on this machine and could not be installed."""


class WrkFailedError(Exception):
    """`wrk` ended without a summary; the text has its output."""


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of one run of `wrk`."""

    rps: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    requests: int
    errors: int
    timeouts: int


def ensure_wrk() -> str:
    """The path of `wrk`, installed from Debian when it is missing and this user may. Raises `WrkMissingError`."""
    if shutil.which("wrk") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        logger.warning("wrk is missing: installing Debian's")
        subprocess.run(["apt-get", "install", "--yes", "--quiet", "wrk"], check=False, stdout=subprocess.DEVNULL)
    found = shutil.which("wrk")
    if found is None:
        raise WrkMissingError("wrk is not installed and apt-get could not install it: install wrk and run again")
    return found


def run_wrk(
    wrk: str, base_url: str, shape: Shape, *, connections: int, duration_s: int, payload_bytes: int = SMALL_BYTES
) -> Load:
    """Drive one system for `duration_s` with inputs of that size. Raises `WrkFailedError`."""
    client = cores.of_this_machine().client
    command = [
        wrk,
        f"--threads={min(max(2, len(client)), connections)}",
        f"--connections={connections}",
        f"--duration={duration_s}s",
        f"--timeout={_TIMEOUT_S}s",
        f"--script={_SCRIPT}",
        base_url + shape.path,
        "--",
        shape.prefix,
        shape.suffix,
        secrets.token_hex(4),
        str(payload_bytes),
        *((shape.credential,) if shape.credential else ()),
    ]
    with cores.on(client):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=duration_s + 60)
    return parse(done.stdout, done.stderr)


def parse(stdout: str, stderr: str = "") -> Load:
    """Read the line that `infer.lua` prints at the end. Raises `WrkFailedError`."""
    lines = [line for line in stdout.splitlines() if line.startswith('{"duration_us"')]
    if not lines:
        raise WrkFailedError((stdout + stderr)[-2000:])
    raw: dict[str, int] = json.loads(lines[-1])
    # wrk counts a response with an error status as an answer, but callers cannot use it.
    good = raw["requests"] - raw["status"]
    return Load(
        rps=good / (raw["duration_us"] / 1e6),
        p50_ms=raw["p50_us"] / 1e3,
        p99_ms=raw["p99_us"] / 1e3,
        max_ms=raw["max_us"] / 1e3,
        requests=raw["requests"],
        errors=raw["connect"] + raw["read"] + raw["write"] + raw["status"],
        timeouts=raw["timeout"],
    )

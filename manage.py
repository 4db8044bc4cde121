#!/usr/bin/env python3
"""The command line of Bunch; the commands are in `workers/cli/`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_VENV = Path(__file__).resolve().parent / ".venv" / "bin" / "python"
if __name__ == "__main__" and sys.prefix == sys.base_prefix and _VENV.exists():
    # `./manage.py` in a shell where nothing is activated, as shell completion runs it.
    os.execv(_VENV, [str(_VENV), *sys.argv])  # noqa: S606

import click  # noqa: E402

from workers.cli.group import LazyGroup  # noqa: E402

# Where each command is, and the first line of its help: nothing is imported to list them.
COMMANDS = {
    "up": ("workers.cli.stack:up", "Run the whole stack in the foreground, until Ctrl-C."),
    "demo": (
        "workers.cli.demo:demo",
        "Start the stack, send 200 sentences as 200 concurrent requests, show the answers, and stop.",
    ),
    "status": ("workers.cli.status:status", "Show the processes of `up`: role, pid, state, uptime."),
    "web": ("workers.cli.roles:web", "Run the HTTP frontend."),
    "worker": ("workers.cli.roles:worker", "Run a worker that serves every configured model."),
    "ops": ("workers.cli.roles:ops", "Run the ops worker: plain Celery tasks and periodic maintenance."),
    "flower": ("workers.cli.roles:flower", "Run Flower, Celery's monitoring page."),
    "check": ("workers.cli.check:check", "Check all settings, the servers that they name, and every model."),
    "health": ("workers.cli.health:health", "Check that a role works on this host."),
    "logs": ("workers.cli.logs:logs", "Print the logs of `up`, with the output of the models."),
    "queues": ("workers.cli.fleet:queues", "Show depth, oldest age and arrival rate of each model and tier."),
    "workers": ("workers.cli.fleet:workers", "List the workers and their executors."),
    "models": ("workers.cli.fleet:models", "List the configured models and how they are served."),
    "dlq": ("workers.cli.dlq:dlq", "Manage the dead-letter queue: list, show, replay, drop."),
    "keys": ("workers.cli.keys:keys", "Manage API keys: create, list, revoke."),
    "explain": (
        "workers.cli.explain:explain",
        "Show where the time of one request went.",
    ),
    "bench": ("workers.cli.bench:bench", "Load a running stack and measure throughput and latency."),
    "pause": (
        "workers.cli.control:pause",
        "Stop claiming MODEL in the whole fleet, until `resume`.",
    ),
    "resume": ("workers.cli.control:resume", "Claim MODEL again, after a `pause`."),
    "drain": (
        "workers.cli.control:drain",
        "Make WORKER finish its batches and claim no more.",
    ),
    "tune": (
        "workers.cli.control:tune",
        "Change MODEL's batching settings in the whole fleet.",
    ),
    "reload": (
        "workers.cli.control:reload",
        "Restart MODEL's executors one by one in the whole fleet.",
    ),
    "reset": ("workers.cli.reset:reset", "Close MODEL's circuit breakers and forget its safe batch sizes."),
    "completion": (
        "workers.cli.complete:completion",
        "Print the completion script of a shell.",
    ),
    "simulate": (
        "workers.cli.simulate:simulate_command",
        "Run the batching policies in virtual time and compare them.",
    ),
    "plan": ("workers.cli.plan:plan_command", "Compute the GPUs, web processes, Redis capacity and cost for a load."),
    "autoscale": (
        "workers.cli.autoscale:autoscale",
        "Scale the number of workers with the load, until Ctrl-C.",
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
def cli(debug: bool) -> None:
    """Bunch: dynamic batching for GPU models on Celery."""


if __name__ == "__main__":
    cli(prog_name="manage.py")

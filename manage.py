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
    "up": ("workers.cli.stack:up", "The whole stack in the foreground, until Ctrl-C."),
    "demo": (
        "workers.cli.demo:demo",
        "Start everything, send 200 sentences as 200 requests at once, show what came back, stop.",
    ),
    "status": ("workers.cli.status:status", "What `up` started: roles, pids, states, uptimes."),
    "web": ("workers.cli.roles:web", "The HTTP frontend."),
    "worker": ("workers.cli.roles:worker", "A worker that runs every model of the configuration."),
    "ops": ("workers.cli.roles:ops", "A plain Celery worker for the tasks that keep the house in order."),
    "flower": ("workers.cli.roles:flower", "Flower, the live page on workers, queues and tasks."),
    "check": ("workers.cli.check:check", "Read all settings, connect to what they name, find every model."),
    "health": ("workers.cli.health:health", "Whether ROLE on this host works: exit 0, or 1 with one line of why."),
    "logs": ("workers.cli.logs:logs", "What the roles of `up` print, what models print included."),
    "queues": ("workers.cli.fleet:queues", "Depth, oldest age and arrival rate of each model's tiers."),
    "workers": ("workers.cli.fleet:workers", "The workers and their executors."),
    "models": ("workers.cli.fleet:models", "The configured models, as they are served now."),
    "dlq": ("workers.cli.dlq:dlq", "The dead-letter queue: list, show, replay, drop."),
    "keys": ("workers.cli.keys:keys", "API keys: create, list, revoke."),
    "explain": (
        "workers.cli.explain:explain",
        "Where the time of a request went: its stages, its batch and neighbours, earlier attempts, its error.",
    ),
    "bench": ("workers.cli.bench:bench", "Load a running stack and measure."),
    "pause": (
        "workers.cli.control:pause",
        "Claim nothing more of MODEL, in the whole fleet, until `resume`; also after restarts.",
    ),
    "resume": ("workers.cli.control:resume", "Claim MODEL again after a `pause`."),
    "drain": (
        "workers.cli.control:drain",
        "Have WORKER claim nothing more and finish what it has; it stays, and can be stopped at leisure.",
    ),
    "tune": (
        "workers.cli.control:tune",
        "Change what MODEL's batches go by, in the whole fleet, from the next batch on; also after restarts.",
    ),
    "reload": (
        "workers.cli.control:reload",
        "Start MODEL's executors anew, one after the other in the whole fleet, from what each worker's file says now.",
    ),
    "reset": ("workers.cli.reset:reset", "Close MODEL's breakers and forget its safe batch sizes."),
    "completion": (
        "workers.cli.complete:completion",
        "Print what makes SHELL complete commands, options, models and workers.",
    ),
    "simulate": (
        "workers.cli.simulate:simulate_command",
        "Run the worker's own policies in virtual time and compare them.",
    ),
    "plan": ("workers.cli.plan:plan_command", "GPUs, web processes, Redis and money for a load."),
    "autoscale": (
        "workers.cli.autoscale:autoscale",
        "Start workers when work waits, and drain them when it does not, until Ctrl-C.",
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show where an error came from.")
def cli(debug: bool) -> None:
    """Bunch: dynamic batching for GPU models on Celery."""


if __name__ == "__main__":
    cli(prog_name="manage.py")

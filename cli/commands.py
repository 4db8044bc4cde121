"""The list of commands, for `manage.py` and `bunch`."""

from __future__ import annotations

import click

from cli.main import LazyGroup

# Where each command is, and the first line of its help: nothing is imported to list them.
COMMANDS = {
    "init": ("cli.run.init:init", "Write a bunch.toml and a small model into FOLDER, the current one by default."),
    "containerize": (
        "cli.run.containerize:containerize",
        "Write a Dockerfile for the models of FOLDER, the current one by default.",
    ),
    "up": ("cli.run.up:up", "Run the whole stack in the foreground, until Ctrl-C."),
    "demo": (
        "cli.run.demo:demo",
        "Start the stack, send 200 sentences as 200 concurrent requests, show the answers, and stop.",
    ),
    "status": ("cli.run.status:status", "Show the processes of `up`: role, pid, state, uptime."),
    "web": ("cli.run.roles:web", "Run the HTTP frontend."),
    "worker": ("cli.run.roles:worker", "Run a worker that serves every configured model."),
    "ops": ("cli.run.roles:ops", "Run the ops worker: plain Celery tasks and periodic maintenance."),
    "grpc": ("cli.run.roles:grpc", "Run the gRPC frontend."),
    "flower": ("cli.run.roles:flower", "Run Flower, Celery's monitoring page."),
    "check": ("cli.run.check:check", "Check all settings, the servers that they name, and every model."),
    "doctor": ("cli.run.doctor:doctor", "Check the settings as `check` does, and this host."),
    "health": ("cli.run.health:health", "Check that a role works on this host."),
    "logs": ("cli.run.logs:logs", "Print the logs of `up`, with the output of the models."),
    "queues": ("cli.operate.fleet:queues", "Show depth, oldest age and arrival rate of each model and tier."),
    "workers": ("cli.operate.fleet:workers", "List the workers and their executors."),
    "models": ("cli.operate.fleet:models", "List the configured models and how they are served."),
    "dlq": ("cli.operate.dlq:dlq", "Manage the dead-letter queue: list, show, replay, drop."),
    "keys": ("cli.operate.keys:keys", "Manage API keys: create, list, revoke."),
    "explain": (
        "cli.operate.explain:explain",
        "Show where the time of one request went.",
    ),
    "bench": ("cli.loadgen.bench:bench", "Load a running stack and measure throughput and latency."),
    "pause": (
        "cli.operate.control:pause",
        "Stop claiming MODEL in the whole fleet, until `resume`.",
    ),
    "resume": ("cli.operate.control:resume", "Claim MODEL again, after a `pause`."),
    "drain": (
        "cli.operate.control:drain",
        "Make WORKER finish its batches and claim no more.",
    ),
    "tune": (
        "cli.operate.control:tune",
        "Change MODEL's batching settings in the whole fleet.",
    ),
    "reload": (
        "cli.operate.control:reload",
        "Restart MODEL's executors one by one in the whole fleet.",
    ),
    "reset": ("cli.operate.reset:reset", "Close MODEL's circuit breakers and forget its safe batch sizes."),
    "completion": (
        "cli.completion:completion",
        "Print the completion script of a shell.",
    ),
    "simulate": (
        "cli.plan.simulate:simulate_command",
        "Run the batching policies in virtual time and compare them.",
    ),
    "plan": ("cli.plan.plan:plan_command", "Compute the GPUs, web processes, Redis capacity and cost for a load."),
    "autoscale": (
        "cli.operate.autoscale:autoscale",
        "Scale the number of workers with the load, until Ctrl-C.",
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
def cli(debug: bool) -> None:
    """Bunch: dynamic batching for GPU models on Celery."""

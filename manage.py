#!/usr/bin/env python
"""The command line of Bunch; the commands are in `workers/cli/`."""

from __future__ import annotations

import click

from workers.cli import (
    autoscale,
    bench,
    check,
    complete,
    control,
    demo,
    dlq,
    explain,
    fleet,
    keys,
    plan,
    reset,
    roles,
    simulate,
    stack,
)
from workers.cli.base import OneLineErrors


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show where an error came from.")
def cli(debug: bool) -> None:
    """Bunch: dynamic batching for GPU models on Celery."""


for command in (
    *(stack.up, demo.demo, stack.status),
    *(roles.web, roles.worker, roles.ops, roles.flower),
    *(check.check, fleet.queues, fleet.workers, fleet.models, dlq.dlq, keys.keys, explain.explain, bench.bench),
    *(control.pause, control.resume, control.drain, control.tune, control.reload, reset.reset, complete.completion),
    *(simulate.simulate_command, plan.plan_command, autoscale.autoscale),
):
    cli.add_command(command)

if __name__ == "__main__":
    cli(prog_name="manage.py")

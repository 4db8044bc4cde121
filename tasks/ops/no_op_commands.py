"""The ops worker's reply to commands for workers with models: that it serves none."""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.worker.control import Panel

from tasks.celery.control_commands import COMMANDS


class NoOpCommandsStep(bootsteps.Step):
    """Used in the ops worker only: a command line that sends commands has the real ones from `workers.app`."""

    def create(self, worker: Any) -> None:
        for name, command in COMMANDS.items():
            Panel.register(**command.options(name))(_serves_nothing)


def _serves_nothing(state: Any, **_: Any) -> dict[str, str]:
    return {"ok": "serves no model"}

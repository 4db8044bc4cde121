"""What the ops worker says to remote-control commands that are meant for those that serve models.

They are sent to everybody, and Celery answers what it does not know with a `KeyError` and a traceback in the log.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.worker.control import control_command

# Those of `workers.remote`.
COMMANDS = ("bunch_stats", "explain", "pause", "resume", "drain", "tune", "reload_model")


class BystanderStep(bootsteps.Step):
    """In the ops worker alone: a command line that only asks has the real ones from `workers.app`."""

    def create(self, worker: Any) -> None:
        for name in COMMANDS:
            control_command(name=name)(_serves_nothing)


def _serves_nothing(state: Any, **_: Any) -> dict[str, str]:
    return {"ok": "serves no model"}

"""Remote control: forget what faults have taught a worker of a model, once their cause is gone.

    manage.py reset MODEL ──broadcast──▶ `reset_faults` in each worker ──▶ breaker closed, whole batches again

A breaker closes by itself with the first good probe, if that is soon enough; a batch size that memory once had no room
for stays until somebody says that there is more.
"""

from __future__ import annotations

from typing import Any

COMMAND = "reset_faults"


def register() -> None:
    """Among Celery's own commands, in this process; `celery -A workers.app control reset_faults MODEL` knows it too."""
    # Here: the command line names the command without being a worker.
    from celery.worker.control import control_command

    control_command(name=COMMAND, args=[("model", str)], signature="<model>")(reset_faults)


def reset_faults(state: Any, model: str, **_more: Any) -> dict[str, Any]:
    """Close a model's circuit breaker and forget the batch size that its memory had room for."""
    try:
        forgotten = state.app.bunch_runner.reset(model)
    except KeyError:
        return {"error": f"this worker does not run {model!r}"}
    return {"ok": "reset", **forgotten}

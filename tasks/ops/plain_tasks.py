"""Plain Celery tasks on `bunch.ops`: housekeeping that no caller waits for."""

from __future__ import annotations

from celery import shared_task


@shared_task(name="bunch.ping")
def ping() -> str:
    """Check the ops worker end to end."""
    return "pong"

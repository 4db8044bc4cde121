"""Plain Celery tasks on `bunch.ops`: what keeps the house in order and is in no caller's way."""

from __future__ import annotations

from celery import shared_task


@shared_task(name="bunch.ping")
def ping() -> str:
    """Whether the ops worker is there, end to end."""
    return "pong"

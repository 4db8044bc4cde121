"""Sends commands to the workers through Celery's remote control, and collects their replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from config.environ import forget_other_programs
from config.settings import Settings
from tasks.fleet.registry_reader import Fleet, WorkerRow

if TYPE_CHECKING:
    from redis import Redis

# As soon as all have replied, it is over; on a machine that is busy with something else a worker needs a second or two.
REPLY_WITHIN_S = 5.0


def tell(
    settings: Settings, redis: Redis, command: str, arguments: dict[str, Any], nodes: Sequence[str] | None = None
) -> dict[str, Any]:
    """Send `command` to `nodes`; without them to all workers, or to those that serve the model that it names. Returns
    each reply by node name.

    A worker that does not reply in time is missing: its main thread is blocked, or it is gone.
    """
    model = arguments.get("model")
    expected = (
        nodes
        if nodes is not None
        else [
            row.node
            for row in _alive(settings, redis)
            if model is None or any(each.model == model for each in row.models)
        ]
    )
    if not expected:
        return {}
    # Celery takes longer to import than the rest of a command, and only commands that are sent need it.
    from tasks.app import make_app

    # Before Celery reads the environment: it would use the broker that another program's variables name.
    forget_other_programs()
    app = make_app(settings)
    try:
        replies = app.control.broadcast(
            command, arguments, destination=list(expected), reply=True, timeout=REPLY_WITHIN_S, limit=len(expected)
        )
    finally:
        app.close()
    return {node: reply for each in cast("list[dict[str, Any]]", replies or []) for node, reply in each.items()}


def find_nodes(settings: Settings, redis: Redis, name: str) -> list[str]:
    """The node names of live workers that `name` stands for: a node name, the part before its @, or a worker id."""
    return [row.node for row in _alive(settings, redis) if name in {row.node, row.node.partition("@")[0], row.id}]


def _alive(settings: Settings, redis: Redis) -> list[WorkerRow]:
    fleet = Fleet(redis, lease_ttl_s=settings.lease_ttl_s)
    return [row for row in fleet.alive_of(fleet.workers()) if row.node]

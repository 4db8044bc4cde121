"""Messages as they are stored in a queue: ours, and those of a plain Celery client."""

from __future__ import annotations

import uuid
from typing import Any

from celery import Celery
from kombu.utils.json import dumps

from batching.claim.lease import Entry, Verdict
from batching.fast_header import HEAD
from config.keys import TASK_NAME, Shard
from config.tiers import Tier
from tasks.client.submission import NO_PARAMETERS, Submission
from tasks.protocol.caller import ANYBODY
from tasks.protocol.outgoing import MessageWriter, Outgoing
from tests.fakes.store import epoch_ms


def our_message(
    task_id: str,
    input: bytes,
    parameters: bytes = NO_PARAMETERS,
    *,
    model: str = "m",
    tier: Tier = Tier.PAID,
    deadline_in_ms: int = 60_000,
    limit_in_ms: int = 60_000,
    result_ttl_ms: int = 60_000,
    tracked: bool = True,
    attempt: int = 0,
    lost: int = 0,
    reply_to: str = "bunch:reply:here",
) -> bytes:
    """The message that `submit.lua` queues for a frontend."""
    now = epoch_ms()
    submission = Submission(model, ANYBODY[tier], input, deadline_in_ms / 1000, parameters)
    queue = Shard().queue(model, tier)
    out = Outgoing(task_id, submission, queue, deadline_in_ms, limit_in_ms, result_ttl_ms, tracked)
    head = f"{now + deadline_in_ms:013d};{now + limit_in_ms:013d};{now:013d};{attempt:02d};{lost};"
    return HEAD + head.encode() + MessageWriter(reply_to).rest(out, now / 1000)


def celery_message(
    args: Any = (),
    kwargs: Any = None,
    *,
    task: str = TASK_NAME,
    body_encoding: str = "base64",
    protocol: int = 2,
    **options: Any,
) -> bytes:
    """The message of a plain Celery client; made with kombu's own memory transport."""
    app = Celery("plain", broker="memory://", set_as_current=False)
    app.conf.update(broker_transport_options={"body_encoding": body_encoding}, task_protocol=protocol)
    queue = f"plain-{uuid.uuid4()}"
    with app.connection_for_write() as connection:
        app.send_task(task, args, kwargs or {}, queue=queue, connection=connection, **options)
        # The envelope, before it would be written as JSON into the list of a queue.
        text: str = dumps(connection.default_channel._get(queue))  # type: ignore[no-untyped-call]
        return text.encode()


def entry(message: bytes, *, position: int = 1, tier: Tier = Tier.PAID, verdict: Verdict = Verdict.RUN) -> Entry:
    return Entry(position, tier.rank, verdict, message)

"""Celery's canvas on a batched task: `link`, `link_error`, `chain`, `group`, `chord`.

A batch bypasses Celery's tracer, which would do this (`celery.app.trace.build_tracer`). The few requests that ask
for it go through here one by one; a `group` needs nothing, its members are ordinary tasks.
"""

from __future__ import annotations

from typing import Any

import msgspec
from celery import Celery, group, signature
from celery.app.task import Context
from kombu.transport.virtual import Message

from batching.request import Cancelled, Ok, Outcome, Request
from tasks import errors
from tasks.errors import BunchError


class CanvasFollowUp:
    """`batching.ports.FollowUp` over a Celery app."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def follow(self, request: Request, outcome: Outcome) -> None:
        """Send callbacks, the rest of the chain and the chord's count. At least once: a crash before the result is
        stored repeats it with the request.
        """
        context = self._context(request)
        if isinstance(outcome, Ok):
            value = msgspec.json.decode(outcome.output)
            self._send_next(context, value)
            self._app.backend.mark_as_done(request.id, value, request=context, store_result=False)
        else:
            error = _exception(outcome)
            self._app.backend.mark_as_failure(request.id, error, request=context, store_result=False)

    def _send_next(self, context: Context, value: Any) -> None:
        family = {"parent_id": context.id, "root_id": context.root_id or context.id}
        callbacks = [signature(each, app=self._app) for each in context.callbacks or ()]
        if callbacks:
            sent = callbacks[0] if len(callbacks) == 1 else group(callbacks, app=self._app)
            sent.apply_async((value,), **family)
        if context.chain:
            following = signature(context.chain[-1], app=self._app)
            following.apply_async((value,), chain=context.chain[:-1], **family)

    def _context(self, request: Request) -> Context:
        """The request as Celery's backend wants it, from the message."""
        message = Message(msgspec.json.decode(request.canvas), channel=None, accept={"application/json"})  # type: ignore[no-untyped-call]
        body = message.payload
        if isinstance(body, dict):
            return Context({**body, "id": request.id, "chain": None, "root_id": None})
        args, kwargs, embed = body
        return Context({**message.headers, **embed, "args": args, "kwargs": kwargs})


def _exception(outcome: Outcome) -> Exception:
    if isinstance(outcome, Cancelled):
        return errors.TaskCancelled(outcome.message)
    assert not isinstance(outcome, Ok)
    known = getattr(errors, getattr(outcome, "exc_type", "DeadlineExceeded"), errors.InferenceFailed)
    cls = known if isinstance(known, type) and issubclass(known, BunchError) else errors.InferenceFailed
    return cls(outcome.message)

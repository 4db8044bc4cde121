"""Celery's canvas on a batched task: `link`, `link_error`, `chain`, `group`, `chord`.

    Ok ──────▶ callbacks, the next step of the chain ──▶ the chord's count
    Cancelled ▶ the rest of the chain and the chord end as revoked
    any other ▶ the rest of the chain and the chord fail ──▶ errbacks

A batch bypasses Celery's tracer, which would do this (`celery.app.trace.build_tracer`). The few requests that need it
are handled here one by one. A `group` needs nothing: its members are ordinary tasks.
"""

from __future__ import annotations

from typing import Any

import msgspec
from celery import Celery, group, signature, states
from celery.app.task import Context
from celery.exceptions import TaskRevokedError

from batching.request import Cancelled, Failed, Ok, Outcome, Request
from tasks import errors
from tasks.errors import BunchError
from tasks.protocol.disclosure import Disclosure
from tasks.protocol.messages import read_canvas


class CanvasFollowUp:
    """`batching.ports.FollowUp` over a Celery app."""

    def __init__(self, app: Celery, disclosure: Disclosure | None = None) -> None:
        self._app = app
        self._disclosure = disclosure or Disclosure()

    def follow(self, request: Request, outcome: Outcome) -> None:
        """Send callbacks, the rest of the chain and the chord's count. At least once: a crash before the result is
        stored repeats it with the request, and so does a broker that fails half-way.
        """
        # Celery needs `delivery_info` before it sends an errback (`Backend._call_task_errbacks`).
        context = Context({"delivery_info": {}, **read_canvas(request.canvas)})
        backend = self._app.backend
        kept = request.result_ttl_ms > 0
        if isinstance(outcome, Ok):
            value = msgspec.json.decode(outcome.in_json().output)
            self._send_next(context, value)
            # The last member of a chord joins all members by their stored results
            # (`RedisBackend.on_chord_part_return`), so its own result cannot wait for the end of its batch.
            backend.mark_as_done(request.id, value, request=context, store_result=kept and bool(context.chord))
        elif isinstance(outcome, Cancelled):
            backend.mark_as_failure(
                request.id,
                TaskRevokedError(outcome.message),
                request=context,
                store_result=kept,
                call_errbacks=False,
                state=states.REVOKED,
            )
        else:
            message = outcome.message
            if isinstance(outcome, Failed):
                message, _ = self._disclosure.told(outcome, request.owner)
            backend.mark_as_failure(request.id, _exception(outcome, message), request=context, store_result=kept)

    def _send_next(self, context: Context, value: Any) -> None:
        family = {"parent_id": context.id, "root_id": context.root_id or context.id}
        callbacks = [signature(each, app=self._app) for each in context.callbacks or ()]
        # A group among them is sent separately, as Celery's tracer does: inside another group it would become a chord.
        groups = [each for each in callbacks if isinstance(each, group)]
        single = [each for each in callbacks if not isinstance(each, group)]
        for each in (*groups, *([group(single, app=self._app)] if len(single) > 1 else single)):
            each.apply_async((value,), **family)
        if context.chain:
            following = signature(context.chain[-1], app=self._app)
            following.apply_async((value,), chain=context.chain[:-1], **family)


def _exception(outcome: Outcome, message: str) -> Exception:
    known = getattr(errors, getattr(outcome, "exc_type", "DeadlineExceeded"), errors.InferenceFailed)
    cls = known if isinstance(known, type) and issubclass(known, BunchError) else errors.InferenceFailed
    return cls(message)

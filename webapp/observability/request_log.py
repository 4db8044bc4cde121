"""Logs single requests: slow ones for the operations page, failed ones in the log.

Most requests do not get here: `RequestTallies.count` says which ones to log.
"""

from __future__ import annotations

import logging
import time

from config.logging import LogBudget
from tasks.client.pending import Pending
from tasks.client.submission import Submission
from tasks.observability import slo
from tasks.observability.slow_log import SlowRequest, with_metadata
from tasks.protocol import traceparent
from tasks.protocol.results import Reply
from webapp.request import HttpRequest
from webapp.services import Services

logger = logging.getLogger(__name__)

# Normal answers of an overloaded service; any other error is a fault.
_EXPECTED = frozenset({"SERVICE_OVERLOADED", "DEADLINE_EXCEEDED", "SHUTTING_DOWN"})
# Checked before a log record is made: when everything fails, the records would cost more than the answers.
_budget = LogBudget(of_a_kind=10)


def remember(
    services: Services,
    call: HttpRequest,
    submission: Submission,
    code: str,
    took_s: float,
    outcome: object,
    pending: Pending | None,
) -> None:
    task_id, tier = pending.task_id if pending else "", submission.tier
    if code not in slo.CALLERS_OWN and took_s > slo.objectives(services.settings)[tier].latency_s:
        request = SlowRequest(
            at=time.time(),
            request_id=call.request_id,
            task_id=task_id,
            model=submission.model,
            tier=tier.value,
            code=code,
            total_ms=round(took_s * 1000, 3),
        )
        services.slow.note(with_metadata(request, bytes(outcome.bunch)) if isinstance(outcome, Reply) else request)
    level = _level(code)
    held_back = _budget.admit(code, time.monotonic()) if level > logging.DEBUG else 0
    if held_back is None or not logger.isEnabledFor(level):
        return
    extra = {
        "request_id": call.request_id,
        "task_id": task_id,
        "model": submission.model,
        "tier": tier.value,
        "client_id": call.client_id or None,
        "trace_id": traceparent.trace_id(call.traceparent),
        "code": code,
        "latency_ms": round(took_s * 1000, 1),
        "held_back": held_back or None,
    }
    logger.log(level, "answered" if code == "OK" else "answered with an error", extra=extra)


def _level(code: str) -> int:
    if code == "OK" or code in slo.CALLERS_OWN or code == "INFERENCE_FAILED":
        # For INFERENCE_FAILED the worker logs the cause, under the same ids.
        return logging.DEBUG
    return logging.INFO if code in _EXPECTED else logging.WARNING

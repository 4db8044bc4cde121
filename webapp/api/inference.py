"""`POST /v1/inference` and its variants: inputs in, outputs out, on the caller's connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, TypeVar

import gevent
import msgspec

from config.native import hot_path
from tasks.client.router import Pending
from tasks.client.submission import Submission
from tasks.errors import BunchError, DeadlineExceeded, IdempotencyConflict
from webapp.api.results import output_of
from webapp.body_budget import COUNTED_BYTES, LEAST_BYTES
from webapp.errors import ApiError
from webapp.observability.request_log import remember
from webapp.observability.server_timing import header_of, times_of
from webapp.parsing import (
    BulkBody,
    InferenceBody,
    PredictBody,
    SimpleBody,
    as_json,
    bulk_json,
    input_json,
    model_name,
    one_each,
    read_body,
    submission_of,
)
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

_inference = msgspec.json.Decoder(InferenceBody)
_bulk = msgspec.json.Decoder(BulkBody)
_predict = msgspec.json.Decoder(PredictBody)
_simple = msgspec.json.Decoder(SimpleBody)
_encode = msgspec.json.Encoder().encode

# Not split: a head has room for tens of thousands of commas.
_RESPOND_ASYNC = re.compile(r"(?:^|,)[ \t]*+respond-async[ \t]*+(?:[,;=]|$)", re.IGNORECASE)

# The total size of `parameters` in the queue, where each input of a bulk call has a copy.
_MAX_REPEATED_BYTES = 4 * 1024 * 1024
_AT_ONCE = 64

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def infer(services: Services, call: HttpRequest) -> HttpResponse:
    """Wait for the output, or with `Prefer: respond-async` answer as soon as the queue has the request."""
    started = perf_counter()
    settings = services.settings
    body = read_body(call, _inference, services.large)
    call.client_id = body.client_id or ""
    model = model_name(settings, body.model)
    declared = services.declared.get(model)
    if declared is not None:
        declared.check(body.input, body.parameters)
    prefer = call.header("HTTP_PREFER")
    waits = prefer is None or not _prefers_async(prefer)
    value = input_json(call, body.input)
    submission = submission_of(settings, call, model, value, body.parameters, body.timeout_ms, waits=waits)
    if not waits:
        return _accepted(call, _run(services, call, submission, started, services.client.receipt))
    answered = services.direct.waiting(services.client, submission)
    reply = _run(services, call, submission, started, answered)
    latency_ms = (perf_counter() - started) * 1000
    about = (call.request_id, reply.task_id, model, reply.result, reply.bunch, latency_ms)
    times = times_of(reply)
    answer, timing = (_answer and _answer(*about, *times)) or answer_of(*about, *times)
    return HttpResponse(200, answer, call.request_id, headers=(("Server-Timing", timing),))


def answer_of(
    request_id: str,
    task_id: str,
    model: str,
    output: msgspec.Raw,
    bunch: msgspec.Raw,
    latency_ms: float,
    *times: Any,
) -> tuple[bytes, str]:
    """The body of an answer, and its `Server-Timing`. `output` is JSON, `bunch` what the worker tells of the reply."""
    timing, reply_ms = header_of(latency_ms, times)
    latency = f"{latency_ms:.3f}"
    body = b"".join(
        (
            b'{"request_id":"',
            request_id.encode(),
            b'","task_id":"',
            task_id.encode(),
            b'","model":"',
            model.encode(),
            b'","output":',
            output,
            f',"latency_ms":{latency},"metadata":{{"latency_ms":{latency},"reply_ms":{reply_ms:.3f},'.encode(),
            bytes(bunch)[1:] if len(bunch) > 2 else b'"cached":false}',
            b"}",
        )
    )
    return body, timing


# The same in C; None where it was not compiled.
_answer: Callable[..., tuple[bytes, str] | None] | None = hot_path.answer if hot_path is not None else None


def predict(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /v1/predict`."""
    started = perf_counter()
    body = read_body(call, _predict, services.large)
    model = model_name(services.settings, body.model_id)
    declared = services.declared.get(model)
    if declared is not None:
        declared.check(body.input_data, None, name="input_data")
    return _plain(services, call, model, input_json(call, body.input_data, "input_data"), started)


def simple(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /api/inference`: a string for the default model."""
    started = perf_counter()
    body = read_body(call, _simple, services.large)
    model = model_name(services.settings, None)
    declared = services.declared.get(model)
    if declared is not None:
        declared.check(body.input, None)
    return _plain(services, call, model, as_json(body.input), started)


def bulk(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /v1/inference/bulk`: each input is a task of its own, batched with all others; answers in order."""
    started = perf_counter()
    settings = services.settings
    body = read_body(call, _bulk, services.large)
    call.client_id = body.client_id or ""
    if len(body.inputs) > settings.max_bulk_items:
        raise ApiError("INVALID_INPUT", f"inputs: at most {settings.max_bulk_items} in one call")
    model = model_name(settings, body.model)
    refusals = _refusals(services, call, model, body)
    whole = submission_of(settings, call, model, b"null", body.parameters, body.timeout_ms)
    if len(whole.parameters) * len(body.inputs) > _MAX_REPEATED_BYTES:
        most = _MAX_REPEATED_BYTES // len(body.inputs)
        raise ApiError(
            "INVALID_INPUT", f"parameters: they are sent with each input; at most {most} bytes with this many inputs"
        )
    submissions = one_each(whole, bulk_json(call, [as_json(each) for each in _yielding(body.inputs)]))
    client = services.client
    pendings = [
        client.submit(submission) if refusal is None else None
        for submission, refusal in _yielding(list(zip(submissions, refusals, strict=True)))
    ]
    if call.turn is not None:
        queued = [each for each, pending in zip(submissions, pendings, strict=True) if pending is not None]
        call.turn.end(in_flight=sum(max(each.queued_bytes, LEAST_BYTES) for each in queued))
    results = []
    errors: list[BunchError] = []
    tier = whole.tier
    for submission, pending, refusal in zip(submissions, pendings, refusals, strict=True):
        try:
            if pending is None:
                assert refusal is not None
                raise refusal
            reply = services.direct.waiting(client, submission)(pending)
        except BunchError as why:
            error = services.readiness.explained(why, model, tier) if isinstance(why, DeadlineExceeded) else why
            services.tallies.count(model, tier, error.code, perf_counter() - started, error.reason)
            errors.append(error)
            if services.ledger is not None:
                services.ledger.note(submission, error, perf_counter() - started)
            if services.record is not None and pending is not None:
                services.record.note(call, pending.task_id, submission, error)
            failed = {"error": error.code, "message": error.message}
            results.append(_encode(failed if pending is None else {"task_id": pending.task_id, **failed}))
        else:
            services.tallies.count(model, tier, "OK", perf_counter() - started)
            results.append(b'{"task_id":"' + reply.task_id.encode() + b'"' + output_of(reply) + b"}")
    _raise_common(errors, len(submissions))
    latency = f"{(perf_counter() - started) * 1000:.3f}"
    answer = (
        f'{{"request_id":"{call.request_id}","model":"{model}","latency_ms":{latency},"results":['.encode()
        + b",".join(results)
        + b"]}"
    )
    return HttpResponse(200, answer, call.request_id)


def _refusals(services: Services, call: HttpRequest, model: str, body: BulkBody) -> list[BunchError | None]:
    """The error of each input, or of all of them. Raises InvalidInput for the parameters."""
    refused = _refusal(services, call, model, len(body.inputs))
    declared = services.declared.get(model)
    if declared is None:
        return [refused] * len(body.inputs)
    declared.check_parameters(body.parameters)
    wrong = declared.refusals(body.inputs)
    if any(wrong) and call.body_bytes >= COUNTED_BYTES:
        # Inputs that are queued count by themselves.
        services.large.refused(call.caller)
    return [each or refused for each in wrong]


def _refusal(services: Services, call: HttpRequest, model: str, count: int = 1) -> BunchError | None:
    """The refusal that is known without the queue, if any."""
    refusal = services.readiness.refusal(model)
    if refusal is not None or not call.client_id:
        return refusal
    return services.clients.refusal(call.caller.owner, call.client_id, count)


def _yielding(items: Sequence[Item]) -> Iterator[Item]:
    """Yield now and then: a bulk call may prepare a thousand requests here, and others must not wait for that."""
    for number, item in enumerate(items):
        if number % _AT_ONCE == _AT_ONCE - 1:
            gevent.sleep(0)
        yield item


def _raise_common(errors: list[BunchError], of: int) -> None:
    """Raise the error that concerns the whole call, not single inputs, if there is one."""
    for each in errors:
        if isinstance(each, IdempotencyConflict):
            raise each
    # Nothing was queued, for one reason that passes: a client that retries by status must see that status.
    if len(errors) == of and errors[0].retry_after_s is not None and len({error.code for error in errors}) == 1:
        raise max(errors, key=lambda error: error.retry_after_s or 0.0)


def _plain(services: Services, call: HttpRequest, model: str, value: bytes, started: float) -> HttpResponse:
    submission = submission_of(services.settings, call, model, value)
    reply = _run(services, call, submission, started, services.direct.waiting(services.client, submission))
    latency_ms = (perf_counter() - started) * 1000
    return HttpResponse(
        200,
        b'{"request_id":"%b","output":%b,"latency_ms":%.3f}'
        % (call.request_id.encode(), bytes(reply.result), latency_ms),
        call.request_id,
        headers=(("Server-Timing", header_of(latency_ms, times_of(reply))[0]),),
    )


def _run(
    services: Services,
    call: HttpRequest,
    submission: Submission,
    started: float,
    wait: Callable[[Pending], Outcome],
) -> Outcome:
    """Submit, then `wait`; counted once, whatever the outcome."""
    model, tier = submission.model, submission.caller.tier
    code, shed = "INTERNAL", ""
    pending: Pending | None = None
    outcome: Outcome | None = None
    try:
        refusal = _refusal(services, call, model)
        if refusal is not None:
            raise refusal
        pending = services.client.submit(submission)
        if call.turn is not None:
            call.turn.end(in_flight=submission.queued_bytes)
        if not submission.idempotency_key:
            # With a key it may turn out to be another task.
            call.became(pending.task_id)
        if call.span is not None:
            about = {"bunch.model": model, "bunch.tier": tier.value, "bunch.task_id": pending.task_id}
            call.span.set_attributes(about | ({"bunch.client_id": call.client_id} if call.client_id else {}))
        outcome = wait(pending)
        code = "OK"
    except BunchError as error:
        code, shed = error.code, error.reason
        if services.ledger is not None:
            services.ledger.note(submission, error, perf_counter() - started)
        if services.record is not None and pending is not None:
            services.record.note(call, pending.task_id, submission, error)
        if isinstance(error, DeadlineExceeded):
            raise services.readiness.explained(error, model, tier) from error
        raise
    finally:
        took_s = perf_counter() - started
        if services.tallies.count(model, tier, code, took_s, shed):
            remember(services, call, submission, code, took_s, outcome, pending)
    return outcome


def _accepted(call: HttpRequest, task_id: str) -> HttpResponse:
    return HttpResponse(
        202,
        _encode({"task_id": task_id, "request_id": call.request_id, "status": "PENDING"}),
        call.request_id,
        headers=(("Location", f"/v1/result/{task_id}"), ("Preference-Applied", "respond-async")),
    )


def _prefers_async(prefer: str) -> bool:
    """RFC 7240: a list of names, with values and parameters that do not matter here."""
    return _RESPOND_ASYNC.search(prefer) is not None

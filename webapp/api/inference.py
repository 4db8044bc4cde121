"""`POST /v1/inference` and its variants: inputs in, outputs out, on the caller's connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from config.native import hot_path
from tasks.client.pending import Pending
from tasks.errors import BunchError
from tasks.protocol.answers import output_of
from tasks.protocol.results import Reply
from webapp.api.running import declared_refusals, raise_common, refusal_of, run, run_each, yielding
from webapp.binary_answers import asking, binary_answer, wish_in
from webapp.encoded import Binary, Encoded
from webapp.errors import ApiError
from webapp.inference_body import read_inference
from webapp.media_types import Wish
from webapp.observability.server_timing import header_of, times_of
from webapp.parsing import (
    BulkBody,
    PredictBody,
    SimpleBody,
    as_json,
    bulk_json,
    input_json,
    read_body,
    submission_of,
)
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services


class _Bulk(BulkBody):
    # Known in order to be refused: nobody shall wait for a push that never comes.
    callback_url: Any = None


_bulk = msgspec.json.Decoder(_Bulk)
_predict = msgspec.json.Decoder(PredictBody)
_simple = msgspec.json.Decoder(SimpleBody)
_encode = msgspec.json.Encoder().encode

# Not split: a head has room for tens of thousands of commas.
_RESPOND_ASYNC = re.compile(r"(?:^|,)[ \t]*+respond-async[ \t]*+(?:[,;=]|$)", re.IGNORECASE)


def infer(services: Services, call: HttpRequest) -> HttpResponse:
    """Wait for the output, or with `Prefer: respond-async` answer as soon as the queue has the request."""
    begun = call.begun
    started = perf_counter() if begun is None else begun.started
    settings = services.settings
    body = read_inference(services, call)
    call.client_id = body.client_id or ""
    # A weight may have changed since a request began.
    model = services.versions.route(body.model, call) if begun is None else begun.model
    declared = services.declared.get(model)
    if declared is not None:
        if isinstance(body.input, Binary):
            # A media type that the model does not take is no matter of its schema.
            services.binary.require_taken(model, body.input.content_type)
        declared.check(body.input, body.parameters)
    prefer = call.header("HTTP_PREFER")
    waits = prefer is None or not _prefers_async(prefer)
    url = call.header("HTTP_CALLBACK_URL") if body.callback_url is None else body.callback_url
    if url is not None:
        services.callbacks.require(url, waits=waits)
    value = services.binary.encoded(model, body.input, partial(input_json, call))
    wish = wish_in(call)
    parameters = asking(call, body.parameters, wish) if wish.form else body.parameters
    about = {"waits": waits, "takes_bytes": bool(wish.types)}
    submission = submission_of(settings, call, model, value, parameters, body.timeout_ms, **about)
    if not waits:
        receipt: Callable[[Pending], str] = services.client.receipt
        if url is not None:
            submission = services.callbacks.kept(submission)
            receipt = services.callbacks.noting(submission, url)
        return _accepted(call, run(services, call, submission, started, receipt))
    answered = services.direct.waiting(services.client, submission)
    reply = run(services, call, submission, started, answered)
    name = services.versions.families.get(model, model)
    if wish.types:
        binary = _as_bytes(call, wish, reply, started, name)
        if binary is not None:
            return binary
        reply = reply.in_json()
    answer, timing = rendered(call.request_id, name, reply, perf_counter() - started)
    return HttpResponse(200, answer, call.request_id, headers=(("Server-Timing", timing),))


def _as_bytes(call: HttpRequest, wish: Wish, reply: Reply, started: float, model: str = "") -> HttpResponse | None:
    """The answer with the output as its body, if that is wished for and possible."""
    latency_ms = (perf_counter() - started) * 1000
    timing, reply_ms = header_of(latency_ms, times_of(reply))
    about = {"request_id": call.request_id, "task_id": reply.task_id, **({"model": model} if model else {})}
    times = {"latency_ms": round(latency_ms, 3), "reply_ms": round(reply_ms, 3)}
    return binary_answer(call, wish, reply, about | times, (("Server-Timing", timing),))


def rendered(request_id: str, model: str, reply: Reply, took_s: float) -> tuple[bytes, str]:
    """The body of the answer to `infer`, and its `Server-Timing`."""
    about = (request_id, reply.task_id, model, reply.result, reply.bunch, took_s * 1000, *times_of(reply))
    return (_answer and _answer(*about)) or answer_of(*about)


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
    model = services.versions.route(body.model_id, call)
    declared = services.declared.get(model)
    if declared is not None:
        declared.check(body.input_data, None, name="input_data")
    encode = partial(input_json, call, name="input_data")
    return _plain(services, call, model, services.binary.encoded(model, body.input_data, encode, "input_data"), started)


def simple(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /api/inference`: a string for the default model."""
    started = perf_counter()
    body = read_body(call, _simple, services.large)
    model = services.versions.route(None, call)
    declared = services.declared.get(model)
    if declared is not None:
        declared.check(body.input, None)
    return _plain(services, call, model, services.binary.encoded(model, body.input, as_json), started)


def bulk(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /v1/inference/bulk`: each input is a task of its own, batched with all others; answers in order."""
    started = perf_counter()
    settings = services.settings
    body = read_body(call, _bulk, services.large)
    call.client_id = body.client_id or ""
    if body.callback_url is not None:
        raise ApiError(
            "INVALID_INPUT", "callback_url: a bulk call has its answers; send each input with Prefer: respond-async"
        )
    if len(body.inputs) > settings.max_bulk_items:
        raise ApiError("INVALID_INPUT", f"inputs: at most {settings.max_bulk_items} in one call")
    model = services.versions.route(body.model, call)
    wrong = declared_refusals(services, call, model, body.inputs, body.parameters)
    whole = submission_of(settings, call, model, b"null", body.parameters, body.timeout_ms)
    refused = refusal_of(services, call, model, whole.timeout_s, len(body.inputs))
    inputs: Sequence[Encoded]
    if model in services.binary:
        inputs, broken = services.binary.each_encoded(model, yielding(body.inputs))
        wrong = [one or other for one, other in zip(wrong, broken, strict=True)]
    else:
        inputs = bulk_json(call, [as_json(each) for each in yielding(body.inputs)])
    ended = run_each(services, call, whole, inputs, [each or refused for each in wrong], started)
    raise_common([each.outcome for each in ended if isinstance(each.outcome, BunchError)], len(ended))
    results = [_item(task_id, outcome) for task_id, outcome in ended]
    latency = f"{(perf_counter() - started) * 1000:.3f}"
    # Its results have no `model_version`.
    name = services.versions.full.get(model, model)
    answer = (
        f'{{"request_id":"{call.request_id}","model":"{name}","latency_ms":{latency},"results":['.encode()
        + b",".join(results)
        + b"]}"
    )
    return HttpResponse(200, answer, call.request_id)


def _item(task_id: str, outcome: Reply | BunchError) -> bytes:
    if isinstance(outcome, Reply):
        return b'{"task_id":"' + task_id.encode() + b'"' + output_of(outcome) + b"}"
    failed = {"error": outcome.code, "message": outcome.message}
    return _encode({"task_id": task_id, **failed} if task_id else failed)


def _plain(services: Services, call: HttpRequest, model: str, value: Encoded, started: float) -> HttpResponse:
    wish = wish_in(call)
    parameters, as_bytes = asking(call, None, wish), bool(wish.types)
    submission = submission_of(services.settings, call, model, value, parameters, takes_bytes=as_bytes)
    reply = run(services, call, submission, started, services.direct.waiting(services.client, submission))
    binary = _as_bytes(call, wish, reply, started) if wish.types else None
    if binary is not None:
        return binary
    reply = reply.in_json()
    latency_ms = (perf_counter() - started) * 1000
    return HttpResponse(
        200,
        b'{"request_id":"%b","output":%b,"latency_ms":%.3f}'
        % (call.request_id.encode(), bytes(reply.result), latency_ms),
        call.request_id,
        headers=(("Server-Timing", header_of(latency_ms, times_of(reply))[0]),),
    )


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

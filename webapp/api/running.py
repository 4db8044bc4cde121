"""Submits the requests of one HTTP call and waits for them: the same for every door.

    Submission ──run──▶ outcome            one request on the caller's connection
    [Submission] ──run_each──▶ [Ended]     each a task of its own, batched with all others; answers in order
    Asked ──run_all──▶ [Reply], or the first error: for answers without room for single errors

A door turns bytes into submissions and replies into bytes. Refusals, counting, ledger, log and traces are here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import gevent
from msgspec.structs import replace

from tasks.client.pending import Pending
from tasks.client.submission import Submission
from tasks.errors import BunchError, DeadlineExceeded, IdempotencyConflict, Refused
from tasks.protocol.binary import OUTPUT
from tasks.protocol.results import Reply
from webapp.body_budget import COUNTED_BYTES, LARGE_BYTES, LEAST_BYTES
from webapp.encoded import Encoded, one_each, size_of
from webapp.errors import ApiError
from webapp.model_tasks import Served
from webapp.observability.metrics import OWN_DOOR
from webapp.observability.request_log import remember
from webapp.parsing import as_json, submission_of
from webapp.request import HttpRequest
from webapp.services import Services

MAX_REPEATED_BYTES = 4 * 1024 * 1024
"""The most that what each input of a call repeats, such as `parameters`, may have in the queue altogether."""
# The size of all inputs of a call in the queue, in bodies. A raw FP32 is up to six times as long in JSON.
_MAX_GROWTH = 6
_AT_ONCE = 64
# The parameter by which an executor makes a vector base64 (`workers.executor.vectors`).
_FORMAT, _PACKED = "encoding_format", "base64"

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Ended(NamedTuple):
    """The end of one of several requests; `task_id` is empty for one that was not submitted."""

    task_id: str
    outcome: Reply | BunchError


def run(
    services: Services,
    call: HttpRequest,
    submission: Submission,
    started: float,
    wait: Callable[[Pending], Outcome],
    door: str = OWN_DOOR,
) -> Outcome:
    """Submit, then `wait`; counted once, whatever the outcome."""
    model, tier = submission.model, submission.caller.tier
    code, shed = "INTERNAL", ""
    pending: Pending | None = None
    outcome: Outcome | None = None
    try:
        begun = call.begun
        refusal = refusal_of(services, call, model, submission.timeout_s) if begun is None else None
        if refusal is not None:
            raise refusal
        pending = services.client.submit(submission) if begun is None else begun.pending
        if call.turn is not None:
            call.turn.end(in_flight=services.client.queued_bytes(submission))
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
        if services.tallies.count(model, tier, code, took_s, shed, door):
            remember(services, call, submission, code, took_s, outcome, pending)
    return outcome


def run_each(
    services: Services,
    call: HttpRequest,
    whole: Submission,
    inputs: Sequence[Encoded],
    refusals: Sequence[BunchError | None],
    started: float,
    door: str = OWN_DOOR,
    *,
    as_one: bool = False,
) -> list[Ended]:
    """Submit each input that has no refusal, then wait for all; each is counted for itself.

    Args:
        whole: what the requests have in common.
        inputs: as their model takes them.
        refusals: the error of each input that must not be submitted.
        as_one: the call fails as a whole; once the queue refuses one, the others are not submitted either.

    Raises:
        ApiError: INVALID_INPUT, if the parameters are too large to be sent with each of so many inputs.
    """
    if len(whole.parameters) * len(inputs) > MAX_REPEATED_BYTES:
        most = MAX_REPEATED_BYTES // len(inputs)
        raise ApiError(
            "INVALID_INPUT", f"parameters: they are sent with each input; at most {most} bytes with this many inputs"
        )
    submissions = one_each(whole, inputs)
    client = services.client
    refusals = list(refusals)
    pendings: list[Pending | None] = []
    for at, submission in enumerate(yielding(submissions)):
        if as_one and at % _AT_ONCE == 0 and (known := _refused(pendings)) is not None:
            refusals[at:] = [known] * (len(refusals) - at)
        pendings.append(client.submit(submission) if refusals[at] is None else None)
    if call.turn is not None:
        queued = [each for each, pending in zip(submissions, pendings, strict=True) if pending is not None]
        call.turn.end(in_flight=sum(max(client.queued_bytes(each), LEAST_BYTES) for each in queued))
    return [
        _ended(services, call, submission, pending, refusal, started, door)
        for submission, pending, refusal in zip(submissions, pendings, refusals, strict=True)
    ]


def _refused(pendings: Sequence[Pending | None]) -> Refused | None:
    """The first refusal of the queue, if one is known already."""
    replies = (each.reply for each in pendings if each is not None)
    return next((each for each in replies if isinstance(each, Refused)), None)


def _ended(
    services: Services,
    call: HttpRequest,
    submission: Submission,
    pending: Pending | None,
    refusal: BunchError | None,
    started: float,
    door: str,
) -> Ended:
    model, tier = submission.model, submission.tier
    try:
        if pending is None:
            assert refusal is not None
            raise refusal
        reply = services.direct.waiting(services.client, submission)(pending)
    except BunchError as why:
        error = services.readiness.explained(why, model, tier) if isinstance(why, DeadlineExceeded) else why
        services.tallies.count(model, tier, error.code, perf_counter() - started, error.reason, door)
        if services.ledger is not None:
            services.ledger.note(submission, error, perf_counter() - started)
        if services.record is not None and pending is not None:
            services.record.note(call, pending.task_id, submission, error)
        return Ended("" if pending is None else pending.task_id, error)
    services.tallies.count(model, tier, "OK", perf_counter() - started, "", door)
    return Ended(reply.task_id, reply)


class Asked(NamedTuple):
    """A call at a door.

    Args:
        name: the field with the inputs, for messages.
        started: when the call began, as `perf_counter` tells it.
        parameters: of the caller; the model may declare a schema for them.
        packed: vectors come as base64 (`workers.executor.vectors`).
        takes_bytes: a reply may be a `BytesReply`.
        form: in which the executor is to give outputs (`workers.executor.output_forms`); empty: JSON.
    """

    door: str
    model: str
    inputs: Sequence[object]
    name: str
    started: float
    parameters: dict[str, Any] | None = None
    timeout_ms: float | None = None
    packed: bool = False
    takes_bytes: bool = False
    form: str = ""


def model_for(services: Services, call: HttpRequest, name: str | None, task: str) -> Served:
    """The model that a door asks, by the caller's name for it or else by its task.

    Raises:
        ApiError: UNKNOWN_MODEL, or INVALID_INPUT for a model without the task.
    """
    asked = services.tasks.serving(task).name if name is None else name
    return services.tasks.require(services.versions.route(asked, call), task)


def run_all(services: Services, call: HttpRequest, asked: Asked) -> list[Reply]:
    """Run every input as a request of its own; return their replies in order.

    Raises:
        BunchError: of the first input that failed, named `name[i]`; one that concerns the whole call comes before.
        ApiError: PAYLOAD_TOO_LARGE, if the inputs have more bytes as JSON than a call may queue.
    """
    door, model, inputs, name, started, parameters, timeout_ms, _, as_bytes, _ = asked
    if model in services.declared:
        for refusal in declared_refusals(services, call, model, inputs, parameters, name):
            if refusal is not None:
                raise refusal
    # What becomes parameters stands elsewhere in a door's body, or is for the executor.
    call.large_body = b""
    settings, values = services.settings, _encoded(services, call, asked)
    parameters = _with_format(services, asked)
    if len(values) == 1:
        submission = submission_of(settings, call, model, values[0], parameters, timeout_ms, takes_bytes=as_bytes)
        if submission.idempotency_key:
            # As one of several, so that the same key with another number of inputs is a conflict too.
            submission = replace(*one_each(submission, values), request_id=submission.request_id)
        return [run(services, call, submission, started, services.direct.waiting(services.client, submission), door)]
    whole = submission_of(settings, call, model, b"null", parameters, timeout_ms, takes_bytes=as_bytes)
    _require_room(services, call, whole, len(values))
    ended = run_each(services, call, whole, values, [None] * len(values), started, door, as_one=True)
    raise_common([each.outcome for each in ended if isinstance(each.outcome, BunchError)], len(values))
    replies: list[Reply] = []
    for at, (_, outcome) in enumerate(ended):
        if isinstance(outcome, BunchError):
            raise _about(f"{name}[{at}]", outcome)
        replies.append(outcome)
    return replies


def _with_format(services: Services, asked: Asked) -> dict[str, Any] | None:
    """The parameters, with the form of outputs, or the format of packed vectors. Raises ApiError INVALID_INPUT if a
    caller names that format there.
    """
    given = asked.parameters
    if given and given.get(_FORMAT) == _PACKED and "embed" in services.tasks[asked.model].tasks:
        raise ApiError("INVALID_INPUT", f"parameters: {_FORMAT} is a field of /v1/embeddings, and no parameter here")
    if asked.form:
        return {**(given or {}), OUTPUT: asked.form}
    return {**(given or {}), _FORMAT: _PACKED} if asked.packed else given


def _encoded(services: Services, call: HttpRequest, asked: Asked) -> list[Encoded]:
    """The inputs as their model takes them, which may be far longer than the body: each repeats the query of a rerank,
    and a raw number has two bytes. So the turn of a large call begins here where its body was small.

    Raises:
        ApiError: PAYLOAD_TOO_LARGE, before the rest is encoded.
        ServiceOverloaded, CallerGone: while it waits for its turn.
    """
    binary, name = services.binary, asked.name
    most = _MAX_GROWTH * services.settings.max_body_bytes
    if asked.model in binary:
        most = max(most, 2 * services.settings.blob_max_bytes)
    values: list[Encoded] = []
    size = 0
    for at, each in enumerate(yielding(asked.inputs)):
        value = binary.encoded(asked.model, each, as_json, f"{name}[{at}]")
        size += size_of(value)
        if size > most:
            raise ApiError("PAYLOAD_TOO_LARGE", f"{name}: more than {most} bytes as JSON; send fewer in one call")
        if size >= LARGE_BYTES and call.turn is None:
            call.turn = services.large.turn(call.key_id, call.hung_up)
        values.append(value)
    return values


def _require_room(services: Services, call: HttpRequest, whole: Submission, count: int) -> None:
    """Raise the refusal of a call that is known before any of its `count` inputs counts against its caller's rate."""
    burst = services.client.burst_of(call.caller)
    if burst is not None and count > burst:
        # Without a time to try again: no later try has more room.
        most = f"{burst} input{'s' * (burst > 1)} in one call"
        raise ApiError("RATE_LIMITED", f"this API key may send at most {most}, which is the burst of its rate")
    refused = refusal_of(services, call, whole.model, whole.timeout_s, count)
    if refused is not None:
        raise refused


def _about(place: str, error: BunchError) -> BunchError:
    """The same error, with the place of its input in front of its message."""
    named = copy.copy(error)
    named.message = f"{place}: {error.message}"
    return named


def refusal_of(
    services: Services, call: HttpRequest, model: str, timeout_s: float, count: int = 1
) -> BunchError | None:
    """The refusal that is known without the queue, if any."""
    refusal = services.readiness.refusal(model, timeout_s)
    if refusal is not None or not call.client_id:
        return refusal
    return services.clients.refusal(call.caller.owner, call.client_id, count)


def declared_refusals(
    services: Services,
    call: HttpRequest,
    model: str,
    inputs: Sequence[object],
    parameters: dict[str, Any] | None,
    name: str = "inputs",
) -> list[BunchError | None]:
    """The error of each input that is not as its model declares. Raises InvalidInput for the parameters."""
    declared = services.declared.get(model)
    if declared is None:
        return [None] * len(inputs)
    declared.check_parameters(parameters)
    wrong: list[BunchError | None] = [*declared.refusals(inputs, name)]
    if any(wrong) and call.body_bytes >= COUNTED_BYTES:
        # Inputs that are queued count by themselves.
        services.large.refused(call.caller)
    return wrong


def yielding(items: Sequence[Item]) -> Iterator[Item]:
    """Yield now and then: a call may prepare a thousand requests here, and others must not wait for that."""
    for number, item in enumerate(items):
        if number % _AT_ONCE == _AT_ONCE - 1:
            gevent.sleep(0)
        yield item


def raise_common(errors: Sequence[BunchError], of: int) -> None:
    """Raise the error that concerns the whole call, not single inputs, if there is one."""
    for each in errors:
        if isinstance(each, IdempotencyConflict):
            raise each
    # Nothing was queued, for one reason that passes: a client that retries by status must see that status.
    if len(errors) == of and errors[0].retry_after_s is not None and len({error.code for error in errors}) == 1:
        raise max(errors, key=lambda error: error.retry_after_s or 0.0)

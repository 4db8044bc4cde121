"""The short path of `POST /v1/inference`: `webapp.api.inference.infer` for a request with nothing special about it.

    body ─▶ input, model ─▶ Submission ─▶ the outbox ─ ─ ▶ reply ─▶ counted ─▶ the whole response's bytes
                                                             └ anything but an output: `infer` ends it

`infer` is the specification. A head with a field that `infer` would act upon has no short path, and a body with a
member beside `input` and `model` is left to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

import msgspec

from config.native import hot_path
from tasks.client.pending import Pending
from tasks.client.submission import Submission
from tasks.errors import BunchError
from tasks.protocol.outputs import reference_in
from tasks.protocol.results import Reply
from webapp.api.inference import rendered
from webapp.binary_answers import wish_in
from webapp.errors import ApiError
from webapp.http.response import plain_response
from webapp.http.short_path import LoopChannel
from webapp.observability.request_log import remember
from webapp.parsing import InferenceBody, as_json, decoded, is_plain_json, timeout_s
from webapp.request import STATUS_LINES, HttpRequest
from webapp.services import Services

logger = logging.getLogger(__name__)

_ROUTE = ("POST", "/v1/inference")
LEFT_ALONE = frozenset(
    {
        "HTTP_CACHE_CONTROL",
        "HTTP_CALLBACK_URL",
        "HTTP_IDEMPOTENCY_KEY",
        "HTTP_PREFER",
        "HTTP_TRACEPARENT",
        "HTTP_TRACESTATE",
        "HTTP_X_REQUEST_ID",
    }
)
"""Fields that `infer` acts upon. The others that it reads say who calls, and how long the caller waits."""

_decoder = msgspec.json.Decoder(InferenceBody)


def make_short_path(services: Services, environ: dict[str, Any]) -> ShortInference | None:
    """The short path of requests whose environ is `environ` but for their bodies; None if they have none."""
    call = HttpRequest(environ)
    if (call.method, call.path) != _ROUTE or not LEFT_ALONE.isdisjoint(environ) or not is_plain_json(call):
        return None
    # With origins every answer says so; with spans every request has one, or decides that it has none.
    if services.settings.origins or services.tracer is not None:
        return None
    # Its output may be the body.
    if wish_in(call).types:
        return None
    try:
        return ShortInference(services, call, timeout_s(services.settings, call, None))
    except ApiError:
        return None


class ShortInference:
    """The short path of one connection's requests, which are as `call` but for their bodies."""

    __slots__ = ("_call", "_services", "_timeout_s")

    def __init__(self, services: Services, call: HttpRequest, limit_s: float) -> None:
        self._services = services
        self._call = call
        self._timeout_s = limit_s

    def take(self, body: bytes, channel: LoopChannel) -> Begun | None:
        """Submit the request of `body`; None if it is for `infer`."""
        started = perf_counter()
        services = self._services
        try:
            plain = _plain_input(body) or plain_input(body)
            if plain is None:
                return None
            value, asked = plain
            model = services.versions.undivided(asked)
            if model is None or model in services.declared or model in services.binary:
                return None
            if not services.readiness.knows(model):
                return None
            caller = services.identity.recognised(self._call)
            if caller is None:
                return None
        except (ApiError, BunchError):
            return None
        submission = Submission(model, caller, value, self._timeout_s, hung_up=channel.disconnected)
        return Begun(services, channel, self._call, submission, started)


class Begun:
    """A request from the event loop, from its submission on."""

    __slots__ = ("_call", "_channel", "_services", "_submission", "pending", "started")

    def __init__(
        self, services: Services, channel: LoopChannel, call: HttpRequest, submission: Submission, started: float
    ) -> None:
        self._services = services
        self._channel = channel
        self._call = call
        self._submission = submission
        self.started = started
        self.pending: Pending = services.client.submit(submission)
        self.pending.wake = self._ended

    @property
    def model(self) -> str:
        return self._submission.model

    def abandon(self) -> None:
        self.pending.wake = None
        self._services.client.drop(self.pending)

    def _ended(self) -> None:
        """Called in the hub, between the replies of a whole batch."""
        self.pending.wake = None
        self._services.client.drop(self.pending)
        answer: bytes | None = None
        try:
            reply = self.pending.reply
            # A large output is still to be read, which takes a greenlet.
            whole = type(reply) is Reply and reply.status == "SUCCESS" and reference_in(reply) is None
            if whole and not self._channel.must_close():
                answer = self._answer(reply)
        except Exception:
            extra = {"task_id": self.pending.task_id}
            logger.exception("an answer could not be made in the event loop; the request's greenlet does", extra=extra)
        if answer is not None:
            self._channel.answer(answer)
        else:
            self._channel.resume()

    def _answer(self, reply: Reply) -> bytes:
        submission, task_id = self._submission, self.pending.task_id
        took_s = perf_counter() - self.started
        name = self._services.versions.families.get(submission.model, submission.model)
        body, timing = rendered(task_id, name, reply, took_s)
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("X-Request-Id", task_id),
            ("Server-Timing", timing),
        ]
        whole = plain_response(STATUS_LINES[200], headers, body)
        if self._services.tallies.count(submission.model, submission.caller.tier, "OK", took_s):
            # Of this request alone: the connection's call would keep the id of the first.
            call = self._call.again()
            call.became(task_id)
            remember(self._services, call, submission, "OK", took_s, reply, self.pending)
        return whole


def plain_input(body: bytes) -> tuple[bytes, str | None] | None:
    """The input as JSON, and the model's name if there is one; None for a body with more.

    Raises:
        ApiError: as `decoded`.
    """
    read = decoded(body, _decoder)
    if (read.parameters, read.timeout_ms, read.client_id, read.callback_url) != (None, None, None, None):
        return None
    return as_json(read.input), read.model


# The same in C for a plain string, where it was compiled; None is for any other body.
_plain_input: Callable[[bytes], tuple[bytes, str | None] | None] = (
    (lambda _: None) if hot_path is None else hot_path.plain_input
)

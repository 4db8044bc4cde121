"""Direct mode: while Redis is away, the frontend itself calls a model that is a fixed API, with one input per call.

    submit ──BackendUnavailable──▶ a place is free ──POST {"inputs": [x], …}──▶ API ──▶ {"outputs": [y]}
                                 │ none is: 503, at once
                                 └ not reached, too slow, "not now": 503 · past the caller's deadline: 504
                                   any other answer: 500

Off unless `[models.<name>] direct = true`. Without batches an API serves a fraction of its rate, so a web process makes
at most `direct_concurrency` calls at once, and no request waits for a place. A caller who does not wait
(`Prefer: respond-async`) is still refused: there is nowhere to store the answer.

The API's own words are logged; callers get its status only. The call is the same as `workers.models.http` makes for a
batch; a test compares the two.
"""

from __future__ import annotations

import itertools
import logging
import ssl
import time
from collections.abc import Callable
from typing import Any

import gevent
import msgspec

from config.model_files.schemes import resolve, scheme_of
from config.model_files.tls_files import client_context, what_is_wrong
from config.secrets.secret_settings import header_values
from config.settings import ModelSettings, Settings
from tasks.client.pending import Pending
from tasks.client.sharded_client import AnyClient
from tasks.client.submission import Submission
from tasks.errors import BackendUnavailable, DeadlineExceeded, InferenceFailed, ModelUnavailable
from tasks.protocol.binary import OUTPUT
from tasks.protocol.disclosure import without_secrets
from tasks.protocol.results import Reply

logger = logging.getLogger(__name__)

_MAX_EXCERPT = 300
_MAX_READ = 65_536
_MAY_PASS = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Answer(msgspec.Struct):
    outputs: list[Any]


_decode = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode


class FallbackModel:
    """One model's API, for the greenlets of one process. The constructor opens no connection."""

    def __init__(self, model: ModelSettings, max_output_bytes: int) -> None:
        import httpx

        options = model.options
        # One line per call at INFO would be one line per request.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._failed_to_ask = httpx.HTTPError
        self._model = model
        self._packs = "embed" in (model.tasks or ())
        self._max_output_bytes = max_output_bytes
        # Each call goes to the next replica.
        self._urls = itertools.cycle([str(options["url"])] if "url" in options else model.replicas)
        self._timeout_s = float(options.get("timeout_ms", model.timeout_ms)) / 1000
        self._headers = header_values(options.get("headers", {}))
        self._client = httpx.Client(
            headers={
                **self._headers,
                "Content-Type": "application/json",
                "Accept": "application/json",
            },
            timeout=self._timeout_s,
            verify=_context(model) if model.ca_file or model.cert_file else bool(options.get("verify", True)),
            limits=httpx.Limits(max_connections=model.direct_concurrency),
        )
        self.running = 0

    def ask(self, submission: Submission, pending: Pending) -> Reply:
        """The output for a request that the queue could not take, within the request's deadline.

        Raises:
            BackendUnavailable: every place is taken.
            DeadlineExceeded: no answer in time.
            ModelUnavailable: the API could not be called, or is unavailable now.
            InferenceFailed: it returned something else.
        """
        if self.running >= self._model.direct_concurrency:
            raise BackendUnavailable(
                "the queue is not reachable, and too many requests call the model directly; try again shortly"
            )
        limit_s = pending.deadline - time.monotonic()
        if limit_s <= 0:
            raise DeadlineExceeded("the request was not answered before its deadline")
        # Httpx bounds each step of a call, but not the whole.
        bound = gevent.Timeout(limit_s)
        asked = (submission.input, _for_the_model(submission.parameters, packs=self._packs))
        self.running += 1
        started = time.perf_counter()
        try:
            with bound:
                output = self._post(b'{"inputs":[%b],"parameters":[%b]}' % asked, submission.traceparent)
        except gevent.Timeout as expired:
            if expired is not bound:
                raise
            raise DeadlineExceeded("the request was not answered before its deadline") from None
        finally:
            self.running -= 1
        took_ms = (time.perf_counter() - started) * 1000
        about = {
            **dict.fromkeys(("admission_ms", "queue_ms", "batch_wait_ms", "transfer_ms"), 0),
            "tier": submission.tier.value,
            "attempt": 1,
            "compute_ms": round(took_ms, 3),
            "reason": "",
            "batch_size": 1,
            "batch_id": "",
            "cached": False,
            "model_version": self._model.version,
        }
        return Reply(pending.task_id, "SUCCESS", msgspec.Raw(output), msgspec.Raw(_encode(about)))

    def close(self) -> None:
        self._client.close()

    def _post(self, body: bytes, traceparent: str) -> bytes:
        try:
            headers = {"traceparent": traceparent} if traceparent else {}
            answer = self._client.post(next(self._urls), content=body, headers=headers)
        except self._failed_to_ask as error:
            public = f"the model's API could not be called: {type(error).__name__}"
            self._log(public, what_is_wrong(error) or str(error))
            raise ModelUnavailable(public) from None
        if not answer.is_success:
            kind = ModelUnavailable if answer.status_code in _MAY_PASS else InferenceFailed
            public = f"the model's API answered {answer.status_code}"
            self._log(public, answer.text[:_MAX_READ])
            raise kind(public)
        try:
            outputs = _decode(answer.content).outputs
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            public = 'the model\'s API must answer {"outputs": [...]}'
            self._log(public, str(error))
            raise InferenceFailed(public) from None
        if len(outputs) != 1:
            raise InferenceFailed(f"the model's API returned {len(outputs)} outputs for one input")
        output = _encode(outputs[0])
        if len(output) > self._max_output_bytes:
            raise InferenceFailed(
                f"the model's output is {len(output)} bytes of JSON; the limit is {self._max_output_bytes}"
            )
        return output

    def _log(self, public: str, said: str) -> None:
        """Log the API's own words for operators, without the header values that it was sent."""
        excerpt = without_secrets(said, self._headers.values())[:_MAX_EXCERPT]
        logger.warning("%s: %s", public, excerpt, extra={"model": self._model.name})


def _for_the_model(parameters: bytes, *, packs: bool) -> bytes:
    """Take out what is for the executor (`workers.executor.output_forms`): without one, an output is what it is."""
    if b"encoding_format" not in parameters and OUTPUT.encode() not in parameters:
        return parameters
    options = msgspec.json.decode(parameters, type=dict[str, Any])
    options.pop(OUTPUT, None)
    if packs and options.get("encoding_format") == "base64":
        del options["encoding_format"]
    return _encode(options)


def _context(model: ModelSettings) -> ssl.SSLContext:
    verify = bool(model.options.get("verify", True))
    return client_context(model.ca_file, model.cert_file, model.key_file, verify=verify)


class FallbackModels:
    """The models with direct mode on."""

    def __init__(self, settings: Settings) -> None:
        limit = settings.max_output_bytes
        self._models: dict[str, FallbackModel] = {
            name: resolve(scheme_of(model.source).direct)(model, limit)
            for name, model in settings.models.items()
            if model.direct
        }

    def waiting(self, client: AnyClient, submission: Submission) -> Callable[[Pending], Reply]:
        """Make the function that waits for the answer to a submitted request."""
        direct = self._models.get(submission.model)
        if direct is None or submission.idempotency_key:
            # With a key the request is computed only once: never without the queue, which knows.
            return client.wait

        def wait(pending: Pending) -> Reply:
            try:
                return client.wait(pending)
            except BackendUnavailable:
                return direct.ask(submission, pending)

        return wait

    def close(self) -> None:
        for each in self._models.values():
            each.close()

"""A remote API as a model: one POST per batch.

    {"inputs": […], "parameters": […]}  ──POST──▶  API  ──▶  {"outputs": […]}   one per input, in order

or in the form of an adapter (`config.model_files.adapters`).

The call succeeds or fails as a whole. After a timeout, 429 or 5xx the call is retried after a pause. Any other status
except 2xx is an error like a model's own, so the batch is sent in parts until the input that the API refuses is found.
The API's text goes to the log and the dead letter, without the headers of the request; callers get its status.
"""

from __future__ import annotations

import logging
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import httpx
import msgspec

from config.model_files.adapters import Adapter, BadAnswer, adapter_of
from config.model_files.api_source import TLS_FILES
from config.model_files.tls_files import BadTlsFile, client_context, what_is_wrong
from config.secrets.secret_settings import NoSecret, header_values
from config.settings import ModelSettings
from tasks.protocol.disclosure import without_secrets
from workers.models import LoadError, Model, TransientError, UpstreamError, construct

MAX_EXCERPT = 300
# Shortened only afterwards: half of a secret would not be recognised as one.
MAX_READ = 65_536
# Gives up before the executor's own time limit would kill the process: a slow API is not a broken executor.
_SHARE_OF_TIMEOUT = 0.9
# Calls of one batch; an API is not to take them for an attack.
_CALLS_AT_ONCE = 8


_MAY_PASS = frozenset({408, 425, 429, 500, 502, 503, 504})


class ApiError(UpstreamError):
    """The API did not answer as it should."""


class ApiUnavailable(ApiError, TransientError):
    """The API did not answer, or reported that it cannot now."""


def load(settings: ModelSettings) -> Model:
    """The model for the API at the source. Raises LoadError: its options, or the files of its TLS, are wrong."""
    adapter, url = adapter_of(settings.source)
    defaults: dict[str, Any] = {"url": url, "timeout_ms": settings.timeout_ms}
    if adapter is not None:
        defaults |= {"adapter": adapter, "model": settings.name}
    defaults |= {key: value for key in TLS_FILES if (value := getattr(settings, key))}
    model: Model = construct(HttpModel, settings.source, defaults | settings.options)
    return model


class _Answer(msgspec.Struct):
    outputs: list[Any]


class HttpModel:
    """Calls `url` over one kept-alive connection.

    Args:
        timeout_ms: timeout of one batch; `[models.<name>] timeout_ms` unless `options` has its own.
        headers: sent with every call, for instance an Authorization; a value is a text, `{ env = "NAME" }` or
            `{ file = "path" }`, and read when the model is made.
        verify: False accepts any TLS certificate.
        ca_file: of the authority whose certificates it accepts, instead of those that this machine trusts.
        cert_file: of its own certificate, if the API asks for one.
        key_file: of the key of that, if `cert_file` does not have it.
        adapter: the API's form; None: our own.
        model: the model's name at the API, where its form has one.
        transport: replaces the network, for tests.
    """

    _client: httpx.Client

    def __init__(
        self,
        url: str,
        timeout_ms: float = 3000,
        headers: dict[str, Any] | None = None,
        verify: bool = True,
        ca_file: str = "",
        cert_file: str = "",
        key_file: str = "",
        adapter: Adapter | None = None,
        model: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url = adapter.address(url, model) if adapter else url
        self._adapter = adapter
        self._model = model
        self._timeout_s = timeout_ms / 1000 * _SHARE_OF_TIMEOUT
        try:
            given = header_values(headers or {})
            # The default context loads the authorities of this machine: not for an address without TLS.
            self._verify: ssl.SSLContext | bool = verify
            if ca_file or cert_file:
                self._verify = client_context(ca_file, cert_file, key_file, verify=verify)
        except (NoSecret, BadTlsFile) as error:
            raise LoadError(str(error)) from error
        self._secrets = tuple(given.values())
        self._headers = {**given, "Content-Type": "application/json", "Accept": "application/json"}
        self._trace: dict[str, str] = {}
        self._transport = transport

    def load(self, device: str) -> None:
        """Open nothing: an API that is down now may be up for the first batch."""
        # One line per call at INFO would be one line per batch.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._client = httpx.Client(
            headers=self._headers, timeout=self._timeout_s, verify=self._verify, transport=self._transport
        )

    def continue_trace(self, traceparent: str) -> None:
        """Set the trace of the next calls, as a W3C `traceparent`; empty: none."""
        self._trace = {"traceparent": traceparent} if traceparent else {}

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        """The API's outputs.

        Raises:
            ApiError: it refused, failed, was too slow, could not be reached, or returned something else.
        """
        if self._adapter is not None:
            return self._adapted(self._adapter, inputs, parameters)
        answer = self._post({"inputs": inputs, "parameters": parameters})
        try:
            return msgspec.json.decode(answer, type=_Answer).outputs
        except msgspec.MsgspecError as error:
            public = 'the model\'s API must answer {"outputs": [...]}'
            raise ApiError(f"{public}: {error}", public) from None

    def _adapted(self, adapter: Adapter, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        outputs: list[Any] = [None] * len(inputs)
        calls = [(members, body) for members, body in adapter.calls(inputs, parameters, self._model)]
        for (members, _), answer in zip(calls, self._answers([body for _, body in calls]), strict=True):
            try:
                found = adapter.outputs(msgspec.json.decode(answer), len(members))
                for member, output in zip(members, found, strict=True):
                    outputs[member] = output
            except (msgspec.MsgspecError, BadAnswer, LookupError, TypeError, ValueError) as error:
                public = f"the model's API must answer {adapter.answers}"
                raise ApiError(f"{public}: {error!r}", public) from None
        return outputs

    def _answers(self, bodies: list[Any]) -> list[bytes]:
        """The answers to several calls, which have the time of one batch together."""
        if len(bodies) <= 1:
            return [self._post(body) for body in bodies]
        until = time.monotonic() + self._timeout_s
        # As they may outlast the batch, each batch has threads of its own.
        threads = ThreadPoolExecutor(min(len(bodies), _CALLS_AT_ONCE), "call")
        try:
            answers = [threads.submit(self._post, body) for body in bodies]
            return [each.result(timeout=max(0.0, until - time.monotonic())) for each in answers]
        except FutureTimeoutError:
            public = "the model's API could not be called: not all calls of the batch were answered in time"
            raise ApiUnavailable(public, public) from None
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _post(self, body: Any) -> bytes:
        try:
            answer = self._client.post(self._url, content=msgspec.json.encode(body), headers=self._trace)
        except httpx.HTTPError as error:
            public = f"the model's API could not be called: {type(error).__name__}"
            # Not `from`: the library's error about a refused header contains the header's value.
            why = what_is_wrong(error) or error
            raise ApiUnavailable(self._logged(f"{public}: {why}"), public) from None
        if not answer.is_success:
            public = f"the model's API answered {answer.status_code}"
            kind = ApiUnavailable if answer.status_code in _MAY_PASS else ApiError
            excerpt = self._logged(answer.text[:MAX_READ])[:MAX_EXCERPT]
            raise kind(f"{public}: {excerpt}", public)
        return answer.content

    def _logged(self, text: str) -> str:
        return without_secrets(text, self._secrets)

"""`POST /v2/models/{model}/infer`: tensors in, tensors out.

    body ─plain─▶ JSON | raw ─tensors_of─▶ tensors ─Signature.rows─▶ inputs ─run_all─▶ replies
    body ◀─compressed─ JSON | raw ◀─answer_body─ tensors ◀─Signature.tensors─ outputs ◀┘

Each row is a request of its own, batched with everybody else's; if one fails, the call fails with its error, since
the protocol has no place for it in an answer. A row that the model refused costs its neighbours nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import msgspec

from config.schema import Tensor
from tasks.errors import InferenceFailed, InvalidInput
from tasks.protocol.results import Reply, decode_details
from webapp.api.doors import KSERVE
from webapp.api.kserve.binary_outputs import form_of
from webapp.api.kserve.compression import chosen, compressed, plain
from webapp.api.kserve.models import family_of, signature_for
from webapp.api.kserve.signature import Signature
from webapp.api.kserve.tensors import (
    BINARY,
    HEADER_LENGTH,
    InferHead,
    TensorValue,
    answer_body,
    split,
    tensors_of,
    wanted_outputs,
)
from webapp.api.running import Asked, run_all
from webapp.binary_answers import bytes_in
from webapp.body_budget import LARGE_BYTES
from webapp.cors import from_another_site
from webapp.errors import ApiError
from webapp.parsing import decoded
from webapp.request import JSON, HttpRequest, HttpResponse
from webapp.services import Services

_infer_head = msgspec.json.Decoder(InferHead)
_decode = msgspec.json.decode
# Triton's clients send none.
_MEDIA_TYPES = frozenset({"", JSON, BINARY})
# Parameters of a request that are the protocol's own; the model gets the others.
_OWN_PARAMETERS = frozenset({"binary_data_output", "timeout", "priority", "headers"})
_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")
_US_PER_MS = 1000
_LONGEST_US = 2**63 - 1


def infer(services: Services, call: HttpRequest, model: str, version: str = "") -> HttpResponse:
    """Answer in JSON, or with the outputs that are asked for in binary form behind it."""
    started = perf_counter()
    signature = signature_for(services, call, model, version)
    text, raw = _read(services, call, signature.model)
    head = decoded(text, _infer_head)
    tensors = tensors_of(head.inputs, raw, services.settings.max_bulk_items, as_bytes=signature.takes_bytes)
    wanted = signature.wanted(wanted_outputs(head))
    outputs, version = run_rows(services, call, signature, tensors, wanted, head.parameters, started)
    about: dict[str, Any] = {"model_name": family_of(services, signature), "model_version": version}
    if head.id:
        about["id"] = head.id
    body, length = answer_body(about, outputs, [binary for _, binary in wanted])
    headers: tuple[tuple[str, str], ...] = ((HEADER_LENGTH, str(length)),) if length else ()
    coding = chosen(call.header("HTTP_ACCEPT_ENCODING"), len(body))
    if coding:
        body = compressed(body, coding)
        headers += (("Content-Encoding", coding), ("Vary", "Accept-Encoding"))
    return HttpResponse(200, body, call.request_id, BINARY if length else JSON, headers)


def run_rows(
    services: Services,
    call: HttpRequest,
    signature: Signature,
    tensors: Sequence[TensorValue],
    wanted: Sequence[tuple[Tensor, bool]],
    parameters: dict[str, Any] | None,
    started: float,
    door: str = KSERVE,
) -> tuple[list[TensorValue], str]:
    """Run each row of the inputs; return the outputs and the version of the model that has computed them. `wanted` has
    the outputs that are asked for, and whether in binary form.

    Raises:
        BunchError, ApiError: of the first row that has failed.
    """
    rows = signature.rows(tensors)
    timeout_ms, own = _parameters_of(parameters)
    outputs = [each for each, _ in wanted]
    if not rows:
        return signature.tensors([], outputs), signature.version
    form = form_of(signature.outputs, [binary for _, binary in wanted])
    asked = Asked(door, signature.model, rows, "row", started, own, timeout_ms, takes_bytes=True, form=form)
    replies = run_all(services, call, asked)
    found = [_output(each) for each in replies]
    return signature.tensors(found, outputs, packed=bool(form)), _version(replies, signature)


def _read(services: Services, call: HttpRequest, model: str) -> tuple[bytes, memoryview]:
    """The JSON of the body, and what follows it. A large body begins its call's turn."""
    media_type = (call.header("CONTENT_TYPE") or "").partition(";")[0].strip().lower()
    if media_type not in _MEDIA_TYPES:
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", f"send Content-Type: {JSON} or {BINARY}, or none")
    if not media_type and from_another_site(call, services.settings.origins):
        raise ApiError("FORBIDDEN", "pages of other sites may call once BUNCH_CORS_ORIGINS names their origin")
    most = most_bytes(services, model)
    if call.body_bytes > most:
        raise ApiError("PAYLOAD_TOO_LARGE", f"the body is larger than {most} bytes, which is the limit of {model}")
    body = call.body()
    encoding = call.header("HTTP_CONTENT_ENCODING")
    if encoding or len(body) >= LARGE_BYTES:
        call.turn = services.large.turn(call.key_id, call.hung_up)
    if encoding:
        # Unless it can be unpacked: nobody knows then how much of it was.
        call.unpacked(most)
        body = plain(body, encoding, most)
        call.unpacked(len(body))
    return split(body, call.header("HTTP_INFERENCE_HEADER_CONTENT_LENGTH"))


def most_bytes(services: Services, model: str) -> int:
    """The limit of a body for a model."""
    settings = services.settings
    return settings.largest_body_bytes if model in services.binary else settings.max_body_bytes


def _parameters_of(given: dict[str, Any] | None) -> tuple[float | None, dict[str, Any]]:
    """The deadline in milliseconds, None for the server's, and the parameters of the model. Raises InvalidInput."""
    parameters = given or {}
    timeout_us = parameters.get("timeout", 0)
    if type(timeout_us) is not int or timeout_us < 0:
        raise InvalidInput("parameters: timeout must be a number of microseconds")
    if type(parameters.get("priority", 0)) is not int:
        raise InvalidInput("parameters: priority must be an integer; the tier of the caller's key is what counts")
    for each in _SEQUENCES:
        if parameters.get(each):
            raise InvalidInput(f"parameters: {each}: sequences are not offered; every request is for itself")
    own = {name: value for name, value in parameters.items() if name not in _OWN_PARAMETERS and name not in _SEQUENCES}
    # Cut before the division, since an integer of 400 digits has no float; the server's own limit is shorter.
    return min(timeout_us, _LONGEST_US) / _US_PER_MS if timeout_us else None, own


def _output(reply: Reply) -> Any:
    raw = bytes_in(reply)
    if raw is not None:
        return raw
    try:
        return _decode(reply.result)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InferenceFailed(f"the model's output cannot be read: {error}") from error


def _version(replies: Sequence[Reply], signature: Signature) -> str:
    return decode_details(replies[0].bunch).model_version or signature.version

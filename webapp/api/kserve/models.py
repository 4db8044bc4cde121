"""Server, models and repository in the form of the Open Inference Protocol.

    GET /v2, /v2/health/live, /v2/health/ready              the server
    GET /v2/models, /v2/models/{m}[/versions/{v}][/ready, /config]
    POST /v2/repository/index, /v2/repository/models/{m}/load, …/unload

What is served stands in `bunch.toml`; nothing here changes it. `load` and `unload` are for models with
`residency = "on_demand"`: the one loads as a request would, the other makes room at once, until the next request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gevent
import msgspec
from kombu.exceptions import OperationalError

from config.installation import PROGRAM
from config.model_files.versions import SEPARATOR
from config.schema import ModelSettings, Tensor
from config.version import VERSION
from tasks.celery.control_commands import UNLOAD_MODEL
from tasks.errors import ModelUnavailable
from tasks.fleet.broadcast import tell
from webapp.api.kserve.datatypes import DATATYPES
from webapp.api.kserve.signature import Signature
from webapp.cors import from_another_site
from webapp.errors import ApiError
from webapp.readiness import Standing
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

PLATFORM = "bunch"
EXTENSIONS = [
    *("binary_tensor_data", "model_configuration", "model_repository", "parameters", "schedule_policy", "statistics"),
]
_encode = msgspec.json.Encoder().encode
_US_PER_MS = 1000
READY, UNAVAILABLE = "READY", "UNAVAILABLE"
_LOAD_LOOK_S = 0.1


class IndexBody(msgspec.Struct):
    """The body of `POST /v2/repository/index`, which may be left out."""

    ready: bool = False


_index_body = msgspec.json.Decoder(IndexBody)


def server(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /v2`."""
    return _answer(call, server_metadata())


def server_metadata() -> dict[str, Any]:
    return {"name": PLATFORM, "version": VERSION, "extensions": EXTENSIONS}


def live(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /v2/health/live`."""
    return _answer(call, {"live": True})


def ready(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /v2/health/ready`: Redis answers, and a model has an executor. 503 otherwise, in the same form."""
    is_ready = server_is_ready(services)
    return _answer(call, {"ready": is_ready}, 200 if is_ready else 503)


def server_is_ready(services: Services) -> bool:
    standing = services.readiness.look()
    return standing is not None and services.identity.ready and bool(standing.served)


def list_models(services: Services, call: HttpRequest) -> HttpResponse:
    """`GET /v2/models`: the names of all models."""
    return _answer(
        call, {"models": [name for name in services.settings.models if name not in services.versions.families]}
    )


def metadata(services: Services, call: HttpRequest, model: str, version: str = "") -> HttpResponse:
    """`GET /v2/models/{model}`."""
    return _answer(call, model_metadata(services, signature_at(services, model, version)))


def model_metadata(services: Services, signature: Signature) -> dict[str, Any]:
    name = family_of(services, signature)
    return {
        "name": name,
        "versions": services.versions.versions(name),
        "platform": PLATFORM,
        # Triton's clients know no row without dimensions, and send a single value as a list of one.
        "inputs": [_tensor(each, each.shape or [1]) for each in signature.inputs],
        "outputs": [_tensor(each, each.shape) for each in signature.outputs],
    }


def model_ready(services: Services, call: HttpRequest, model: str, version: str = "") -> HttpResponse:
    """`GET /v2/models/{model}/ready`; 503 in the same form while no executor takes batches of it."""
    is_ready = model_is_ready(services, model, version)
    return _answer(call, {"name": model, "ready": is_ready}, 200 if is_ready else 503)


def model_is_ready(services: Services, model: str, version: str = "") -> bool:
    """Tell whether some version that answers has an executor, or the one that is named. Raises ApiError."""
    answering = services.versions.answering(at_version(model, version))
    standing = services.readiness.look()
    return standing is not None and not standing.served.isdisjoint(answering)


def config(services: Services, call: HttpRequest, model: str, version: str = "") -> HttpResponse:
    """`GET /v2/models/{model}/config`, in Triton's form."""
    return _answer(call, model_config(services, signature_at(services, model, version)))


def model_config(services: Services, signature: Signature) -> dict[str, Any]:
    model = services.settings.models[signature.model]
    batching: dict[str, Any] = {"preferred_batch_size": [model.max_batch_size]}
    if model.max_wait_ms is not None:
        batching["max_queue_delay_microseconds"] = model.max_wait_ms * _US_PER_MS
    return {
        "name": family_of(services, signature),
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": model.max_batch_size,
        "input": [_config_tensor(each) for each in signature.inputs],
        "output": [_config_tensor(each) for each in signature.outputs],
        "instance_group": [{"name": model.name, "kind": _kind(model), "count": model.instances}],
        "dynamic_batching": batching,
        "version_policy": {"specific": {"versions": [int(model.version)] if model.version.isdecimal() else []}},
    }


def index(services: Services, call: HttpRequest) -> HttpResponse:
    """`POST /v2/repository/index`; the body may be empty, or `{"ready": true}` for the models that are ready."""
    raw = call.body()
    try:
        only_ready = bool(raw.strip()) and _index_body.decode(raw).ready
    except msgspec.MsgspecError as error:
        raise ApiError("INVALID_JSON", f"the body must be empty, or an object with ready: {error}") from error
    return _answer(call, repository(services, only_ready=only_ready))


def repository(services: Services, *, only_ready: bool) -> list[dict[str, str]]:
    standing = services.readiness.look()
    rows = [_indexed(family_of(services, each), each, standing) for each in services.signatures.values()]
    return [row for row in rows if not only_ready or row["state"] == READY]


def _indexed(name: str, signature: Signature, standing: Standing | None) -> dict[str, str]:
    row = {"name": name, "version": signature.version, "state": READY, "reason": ""}
    if standing is None:
        return {**row, "state": UNAVAILABLE, "reason": "Redis does not answer"}
    if signature.model not in standing.served:
        return {**row, "state": UNAVAILABLE, "reason": "no executor is ready"}
    if signature.model in standing.cold:
        return {**row, "reason": "not loaded; the next request loads it"}
    return row


def load(services: Services, call: HttpRequest, model: str) -> HttpResponse:
    """`POST /v2/repository/models/{model}/load`: success once it is loaded."""
    _refuse_pages(call)
    require_loaded(services, model)
    return _answer(call, {})


def _refuse_pages(call: HttpRequest) -> None:
    """Refuse pages of other sites: what has no body, a browser sends without asking first. Raises ApiError."""
    if from_another_site(call, frozenset()):
        raise ApiError("FORBIDDEN", "pages of other sites may not use this")


def require_loaded(services: Services, model: str) -> None:
    """Load a model that is loaded on demand, and wait for it. Raises ApiError or ModelUnavailable unless it is loaded
    then.
    """
    name = signature_at(services, model, "").model
    if services.settings.models[name].on_demand:
        _load_now(services, name)
    elif not model_is_ready(services, model):
        raise ApiError(
            "MODEL_UNAVAILABLE",
            f"no executor is ready for {model}: workers load the models of bunch.toml when they start, and this"
            " request starts none",
        )


def _load_now(services: Services, model: str) -> None:
    until = time.monotonic() + services.settings.request_timeout_s
    services.readiness.want(model)
    while True:
        standing = services.readiness.look(max_age_s=_LOAD_LOOK_S)
        if standing is None:
            raise ApiError("BACKEND_UNAVAILABLE", "Redis does not answer")
        cold = standing.cold.get(model)
        if cold is None and model in standing.served:
            return
        if cold is None or cold.failed:
            raise ModelUnavailable(
                f"{model} cannot be loaded; `manage.py models` says why", (cold and cold.ready_in_s) or 1.0
            )
        if time.monotonic() >= until:
            raise ModelUnavailable(f"{model} is not loaded yet; it has been asked for", cold.ready_in_s or 1.0)
        gevent.sleep(_LOAD_LOOK_S)


def unload(services: Services, call: HttpRequest, model: str) -> HttpResponse:
    """`POST /v2/repository/models/{model}/unload`: success once the workers know. They finish their batches."""
    _refuse_pages(call)
    unload_now(services, model)
    return _answer(call, {})


def unload_now(services: Services, model: str) -> None:
    """Unload a model that is loaded on demand, until the next request for it. Raises ApiError."""
    name = signature_at(services, model, "").model
    if not services.settings.models[name].on_demand:
        raise _stays_loaded(name)
    try:
        replies = tell(services.settings, services.redis, UNLOAD_MODEL, {"model": name})
    except OperationalError as error:
        raise ApiError("BACKEND_UNAVAILABLE", f"the broker is not reachable: {error}") from error
    if not replies:
        raise ApiError("BACKEND_UNAVAILABLE", "no worker answers; in collocated mode nothing is unloaded by hand")
    refused = [f"{node}: {reply['error']}" for node, reply in replies.items() if "error" in reply]
    if refused:
        raise ApiError("INVALID_INPUT", "; ".join(refused))


def _stays_loaded(model: str) -> ApiError:
    return ApiError(
        "INVALID_INPUT",
        f"{model} stays loaded for as long as a worker runs that serves it; `{PROGRAM} pause {model}` stops it from"
        ' taking requests, `worker --models` runs workers without it, and `residency = "on_demand"` in bunch.toml lets'
        " it be unloaded",
    )


def signature_at(services: Services, model: str, version: str) -> Signature:
    """The signature of a served model; no version means the model's own. Raises ApiError UNKNOWN_MODEL."""
    return services.signatures[services.versions.exact(at_version(model, version))]


def signature_for(services: Services, call: HttpRequest, model: str, version: str) -> Signature:
    """The signature of the model that answers a caller. Raises ApiError UNKNOWN_MODEL."""
    return services.signatures[services.versions.route(at_version(model, version), call)]


def at_version(model: str, version: str) -> str:
    """The name of a version, as the other doors write it."""
    return f"{model}{SEPARATOR}{version}" if version else model


def family_of(services: Services, signature: Signature) -> str:
    """The model's name without a version, for which the protocol has a field of its own."""
    return services.versions.families.get(signature.model, signature.model)


def _kind(model: ModelSettings) -> str:
    if model.device == "auto":
        return "KIND_AUTO"
    return "KIND_GPU" if model.device.startswith("cuda") else "KIND_CPU"


def _tensor(tensor: Tensor, row_shape: Sequence[int]) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": [-1, *row_shape]}


def _config_tensor(tensor: Tensor) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": tensor.name,
        "data_type": DATATYPES[tensor.datatype].config,
        "dims": tensor.shape or [1],
    }
    # Triton has no other way to write down a row that is a single value.
    return row if tensor.shape else {**row, "reshape": {"shape": []}}


def _answer(call: HttpRequest, body: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, _encode(body), call.request_id)

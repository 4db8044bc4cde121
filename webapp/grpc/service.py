"""The methods of `inference.GRPCInferenceService`, over the functions that answer the REST endpoints.

    message, metadata ─▶ HttpRequest ─identify─▶ the same run_rows, metadata, statistics … ─▶ message
                                         └ any error: `webapp.grpc.statuses`

Metadata are headers: `authorization`, `idempotency-key`, `x-request-id`, `traceparent`, `cache-control`, `x-tier`.
The deadline is gRPC's own. An RPC that its client cancels counts as a connection that was closed: its request is
cancelled if it still waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc

from tasks.errors import BunchError
from tasks.protocol.traceparent import trace_id
from webapp.api.doors import GRPC
from webapp.api.kserve import models, statistics
from webapp.api.kserve.inference import run_rows
from webapp.body_budget import COUNTED_BYTES, LARGE_BYTES
from webapp.errors import STATUS_OF as HTTP_STATUS_OF
from webapp.errors import ApiError
from webapp.grpc.bridge import ServiceThread
from webapp.grpc.messages import filled, infer_response, parameters_of, tensors_of, wanted_of
from webapp.grpc.proto import open_inference_pb2 as pb
from webapp.grpc.statuses import STATUS_OF, trailing
from webapp.identity.base import Access
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

logger = logging.getLogger(__name__)

SERVICE = "inference.GRPCInferenceService"
# Requests of one stream that wait at the same time.
_STREAM_AHEAD = 64
_INTERNAL = ApiError("INTERNAL", "internal error; the server's log has it under this request id")

Work = Callable[[Services, HttpRequest, Any], Any]


class Method(NamedTuple):
    """One unary method: the type of its request, who may call it, and its answer."""

    request: Any
    access: Access
    work: Work


def _ready(services: Services, call: HttpRequest, request: Any) -> Any:
    models.signature_at(services, request.name, request.version)
    return pb.ModelReadyResponse(ready=models.model_is_ready(services, request.name))


def _metadata(services: Services, call: HttpRequest, request: Any) -> Any:
    signature = models.signature_at(services, request.name, request.version)
    return filled(pb.ModelMetadataResponse(), models.model_metadata(signature))


def _config(services: Services, call: HttpRequest, request: Any) -> Any:
    signature = models.signature_at(services, request.name, request.version)
    return filled(pb.ModelConfigResponse(), {"config": models.model_config(services, signature)})


def _statistics(services: Services, call: HttpRequest, request: Any) -> Any:
    rows = statistics.model_statistics(services, request.name, request.version)
    return filled(pb.ModelStatisticsResponse(), {"model_stats": rows})


def _index(services: Services, call: HttpRequest, request: Any) -> Any:
    return filled(pb.RepositoryIndexResponse(), {"models": models.repository(services, only_ready=request.ready)})


def _load(services: Services, call: HttpRequest, request: Any) -> Any:
    models.require_loaded(services, request.model_name)
    return pb.RepositoryModelLoadResponse()


def _unload(services: Services, call: HttpRequest, request: Any) -> Any:
    raise models.refused_unload(services, request.model_name)


def _infer(services: Services, call: HttpRequest, request: Any) -> Any:
    started = perf_counter()
    size = call.body_bytes
    if size >= LARGE_BYTES:
        services.large.admit(call.caller)
        call.turn = services.large.turn(call.key_id, call.hung_up)
    signature = models.signature_at(services, request.model_name, request.model_version)
    tensors = tensors_of(request, services.settings.max_bulk_items)
    wanted = [each for each, _ in signature.wanted(wanted_of(request))]
    parameters = parameters_of(request.parameters)
    outputs, version = run_rows(services, call, signature, tensors, wanted, parameters, started, GRPC)
    return infer_response(signature.model, version, request.id, outputs)


METHODS: dict[str, Method] = {
    "ServerLive": Method(pb.ServerLiveRequest, Access.PUBLIC, lambda *_: pb.ServerLiveResponse(live=True)),
    "ServerReady": Method(
        *(pb.ServerReadyRequest, Access.PUBLIC),
        lambda services, *_: pb.ServerReadyResponse(ready=models.server_is_ready(services)),
    ),
    "ServerMetadata": Method(
        *(pb.ServerMetadataRequest, Access.PUBLIC),
        lambda *_: filled(pb.ServerMetadataResponse(), models.server_metadata()),
    ),
    "ModelReady": Method(pb.ModelReadyRequest, Access.TENANT, _ready),
    "ModelMetadata": Method(pb.ModelMetadataRequest, Access.TENANT, _metadata),
    "ModelConfig": Method(pb.ModelConfigRequest, Access.TENANT, _config),
    "ModelStatistics": Method(pb.ModelStatisticsRequest, Access.TENANT, _statistics),
    "ModelInfer": Method(pb.ModelInferRequest, Access.TENANT, _infer),
    "RepositoryIndex": Method(pb.RepositoryIndexRequest, Access.TENANT, _index),
    "RepositoryModelLoad": Method(pb.RepositoryModelLoadRequest, Access.OPERATOR, _load),
    "RepositoryModelUnload": Method(pb.RepositoryModelUnloadRequest, Access.OPERATOR, _unload),
}


class Service:
    """The methods, as gRPC calls them."""

    def __init__(self, thread: ServiceThread) -> None:
        self._thread = thread
        self.shutting_down = False

    def handler(self) -> grpc.GenericRpcHandler:
        """The methods under their names."""
        unary = {
            name: grpc.unary_unary_rpc_method_handler(
                self._unary(name, method), method.request.FromString, lambda answer: answer.SerializeToString()
            )
            for name, method in METHODS.items()
        }
        stream = grpc.stream_stream_rpc_method_handler(
            self._stream, pb.ModelInferRequest.FromString, pb.ModelStreamInferResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, {**unary, "ModelStreamInfer": stream})

    def _unary(self, name: str, method: Method) -> Any:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            http, answer = await self._answer(name, method, request, context)
            if isinstance(answer, BunchError | ApiError):
                await context.abort(STATUS_OF[answer.code], answer.message, trailing(answer, http.request_id))
            context.set_trailing_metadata((("x-request-id", http.request_id),))
            return answer

        return call

    async def _stream(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """Answer each request of a stream, in their order; an error ends its request and not the stream."""
        under_way: asyncio.Queue[Any] = asyncio.Queue(_STREAM_AHEAD)
        tasks: set[asyncio.Task[Any]] = set()

        async def read() -> None:
            async for request in requests:
                task = asyncio.create_task(self._answer("ModelStreamInfer", METHODS["ModelInfer"], request, context))
                tasks.add(task)
                await under_way.put((request, task))
            await under_way.put(None)

        reading = asyncio.create_task(read())
        try:
            while (each := await under_way.get()) is not None:
                request, task = each
                _, answer = await task
                tasks.discard(task)
                if isinstance(answer, BunchError | ApiError):
                    response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
                    yield pb.ModelStreamInferResponse(error_message=answer.message, infer_response=response)
                else:
                    yield pb.ModelStreamInferResponse(infer_response=answer)
        finally:
            for task in (reading, *tasks):
                task.cancel()
            await asyncio.gather(reading, *tasks, return_exceptions=True)

    async def _answer(
        self, name: str, method: Method, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tuple[HttpRequest, Any]:
        """The answer of a method, or the error instead of it. Raises CancelledError if the client does not wait."""
        gone = False
        environ = environ_of(name, request.ByteSize(), context, lambda: gone, lambda: self.shutting_down)
        call = HttpRequest(environ)
        try:
            return call, await self._thread.run(lambda: answered(method, self._thread.services, call, request))
        except (BunchError, ApiError) as error:
            return call, error
        except asyncio.CancelledError:
            gone = True
            raise
        except Exception:
            extra = {"request_id": call.request_id, "trace_id": trace_id(call.traceparent), "path": call.path}
            logger.exception("unexpected error in a request", extra=extra)
            return call, _INTERNAL


def answered(method: Method, services: Services, call: HttpRequest, request: Any) -> Any:
    """Identify the caller and run a method, as `webapp.app.answered` does with a handler.

    Raises:
        BunchError, ApiError: instead of an answer.
    """
    tracer = services.tracer
    span = tracer.begin(call) if tracer is not None else None
    code = 200
    try:
        if method.access is not Access.PUBLIC:
            call.caller = services.identity.identify(call, method.access)
        return method.work(services, call, request)
    except (BunchError, ApiError) as error:
        code = HTTP_STATUS_OF[error.code]
        if call.turn is not None:
            call.turn.end()
        if code in {400, 404, 413} and call.body_bytes >= COUNTED_BYTES and call.key_id:
            services.large.refused(call.caller)
        raise
    except BaseException:
        code = 500
        raise
    finally:
        if call.turn is not None:
            call.turn.leave()
        if span is not None and tracer is not None:
            tracer.end(span, HttpResponse(code, b"", call.request_id))


def environ_of(
    name: str,
    size: int,
    context: Any,
    gone: Callable[[], bool],
    shutting_down: Callable[[], bool],
) -> dict[str, Any]:
    """An RPC as the WSGI environment of the same request over HTTP; binary metadata are left out."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": f"/{SERVICE}/{quote(name)}",
        "wsgi.url_scheme": "http",
        "CONTENT_LENGTH": str(size),
        "bunch.disconnected": gone,
        "bunch.shutting_down": shutting_down,
    }
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            environ[f"HTTP_{key.upper().replace('-', '_')}"] = value
    left_s = context.time_remaining()
    if left_s is not None:
        environ["HTTP_X_TIMEOUT_MS"] = f"{max(left_s * 1000, 0.001):.3f}"
    return environ

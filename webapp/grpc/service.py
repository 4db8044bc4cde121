"""The methods of `inference.GRPCInferenceService`, over the functions that answer the REST endpoints.

    metadata ─strangers.Doorkeeper─▶ message ─identify, turn, parse─▶ the same run_rows, statistics … ─▶ message
                 └ any error: `webapp.grpc.statuses` ┘

Metadata are headers: `authorization`, `idempotency-key`, `x-request-id`, `traceparent`, `cache-control`, `x-tier`.
The deadline is gRPC's own. An RPC that its client cancels counts as a connection that was closed: its request is
cancelled if it still waits. Messages are bytes until their caller is known: a mebibyte of them may be half a million
objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError

from tasks.errors import BunchError, InvalidInput, ServiceOverloaded, ShuttingDown
from tasks.protocol.traceparent import trace_id
from webapp.api.doors import GRPC
from webapp.api.kserve import models, statistics
from webapp.api.kserve.inference import most_bytes, run_rows
from webapp.body_budget import COUNTED_BYTES, LARGE_BYTES
from webapp.errors import STATUS_OF as HTTP_STATUS_OF
from webapp.errors import ApiError
from webapp.grpc.bridge import ServiceThread
from webapp.grpc.connections import Connections
from webapp.grpc.messages import filled, infer_response, parameters_of, tensors_of, wanted_of
from webapp.grpc.proto import open_inference_pb2 as pb
from webapp.grpc.statuses import STATUS_OF, details, trailing
from webapp.identity.base import Access
from webapp.request import HttpRequest, HttpResponse
from webapp.services import Services

logger = logging.getLogger(__name__)

SERVICE = "inference.GRPCInferenceService"
ROOM_BYTES = 65_536
"""Of a message, beside the tensors: names, shapes, parameters."""
# Requests of one stream that wait at the same time.
_STREAM_AHEAD = 64
MAX_STREAMS = 2048
"""The most streams at once, which may wait for their callers for ever: a part of all calls, and a key half of it."""
key_of: ContextVar[str] = ContextVar("key_of", default="")
"""The key of the RPC's caller, as the doorkeeper has identified it."""
INTERNAL = ApiError("INTERNAL", "internal error; the server's log has it under this request id")

Work = Callable[[Services, HttpRequest, Any], Any]


class Method(NamedTuple):
    """One unary method: the type of its request, who may call it, and its answer."""

    request: Any
    access: Access
    work: Work


def _ready(services: Services, call: HttpRequest, request: Any) -> Any:
    return pb.ModelReadyResponse(ready=models.model_is_ready(services, request.name, request.version))


def _metadata(services: Services, call: HttpRequest, request: Any) -> Any:
    signature = models.signature_at(services, request.name, request.version)
    return filled(pb.ModelMetadataResponse(), models.model_metadata(services, signature))


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
    models.unload_now(services, request.model_name)
    return pb.RepositoryModelUnloadResponse()


def _infer(services: Services, call: HttpRequest, request: Any) -> Any:
    started = perf_counter()
    signature = models.signature_for(services, call, request.model_name, request.model_version)
    most = most_bytes(services, signature.model)
    if request.ByteSize() > most + ROOM_BYTES:
        raise ApiError("PAYLOAD_TOO_LARGE", f"the message is larger than {most} bytes, which is the limit of its model")
    tensors = tensors_of(request, services.settings.max_bulk_items, as_bytes=signature.takes_bytes)
    # Answers have all of them as raw bytes.
    wanted = [(each, True) for each, _ in signature.wanted(wanted_of(request))]
    parameters = parameters_of(request.parameters)
    outputs, version = run_rows(services, call, signature, tensors, wanted, parameters, started, GRPC)
    return infer_response(models.family_of(services, signature), version, request.id, outputs)


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


@dataclass(slots=True)
class Message:
    """A message as it was received; `request` once it has been parsed."""

    raw: bytes
    request: Any = None


class Service:
    """The methods, as gRPC calls them."""

    def __init__(self, thread: ServiceThread, connections: Connections) -> None:
        self._thread = thread
        self._connections = connections
        self._reading: set[asyncio.Task[None]] = set()
        self._streams: Counter[str] = Counter()
        self.shutting_down = False

    def stop(self) -> None:
        """Take no further request of any stream; each ends when those under way are answered."""
        self.shutting_down = True
        for task in self._reading:
            task.cancel()

    def handler(self) -> grpc.GenericRpcHandler:
        """The methods under their names."""
        unary = {
            name: grpc.unary_unary_rpc_method_handler(
                self._unary(name, method), None, lambda answer: answer.SerializeToString()
            )
            for name, method in METHODS.items()
        }
        stream = grpc.stream_stream_rpc_method_handler(
            self._stream, None, pb.ModelStreamInferResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, {**unary, "ModelStreamInfer": stream})

    def _unary(self, name: str, method: Method) -> Any:
        async def call(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            self._connections.called(context.peer())
            http, answer = await self._answer(name, method, Message(raw), context)
            if isinstance(answer, BunchError | ApiError):
                await abort(context, answer, http.request_id)
            context.set_trailing_metadata((("x-request-id", http.request_id),))
            return answer

        return call

    async def _stream(self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """Answer each request of a stream, in their order; an error ends its request and not the stream."""
        self._connections.called(context.peer())
        call = HttpRequest(environ_of("ModelStreamInfer", 0, context.invocation_metadata(), None))
        key_id = key_of.get()
        refused = self._refusal(call, key_id)
        if refused is not None:
            await abort(context, refused, call.request_id)
        under_way: asyncio.Queue[Any] = asyncio.Queue()
        room = asyncio.Semaphore(_STREAM_AHEAD)
        tasks: set[asyncio.Task[Any]] = set()

        async def read() -> None:
            try:
                async for raw in messages:
                    await room.acquire()
                    message = Message(raw)
                    task = asyncio.create_task(
                        self._answer("ModelStreamInfer", METHODS["ModelInfer"], message, context)
                    )
                    tasks.add(task)
                    under_way.put_nowait((message, task))
            finally:
                # However it ends: the other side waits for it.
                under_way.put_nowait(None)

        reading = asyncio.create_task(read())
        self._reading.add(reading)
        self._streams[key_id] += 1
        try:
            while (each := await under_way.get()) is not None:
                message, task = each
                _, answer = await task
                tasks.discard(task)
                room.release()
                yield _streamed(message.request, answer)
            await asyncio.wait([reading])
            if reading.cancelled():
                await abort(context, ShuttingDown("the server is stopping; open another stream"), call.request_id)
            await reading
        finally:
            self._reading.discard(reading)
            self._streams -= Counter({key_id: 1})
            for task in (reading, *tasks):
                task.cancel()
            await asyncio.gather(reading, *tasks, return_exceptions=True)

    def _refusal(self, call: HttpRequest, key_id: str) -> BunchError | ApiError | None:
        """The error of a stream that must not begin."""
        if self.shutting_down:
            return ShuttingDown("the server is stopping; open another stream")
        if self._streams.total() >= MAX_STREAMS or (key_id and self._streams[key_id] >= MAX_STREAMS // 2):
            return ServiceOverloaded("too many streams are open at once; close some, or use ModelInfer", 1.0)
        if call.header("HTTP_IDEMPOTENCY_KEY") is not None:
            return ApiError("INVALID_HEADER", "idempotency-key: all requests of a stream would have it; use ModelInfer")
        return None

    async def _answer(
        self, name: str, method: Method, message: Message, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tuple[HttpRequest, Any]:
        """The answer of a method, or the error instead of it. Raises CancelledError if the client does not wait."""
        gone = False
        environ = environ_of(name, len(message.raw), context.invocation_metadata(), context.time_remaining())
        environ |= {"bunch.disconnected": lambda: gone, "bunch.shutting_down": lambda: self.shutting_down}
        call = HttpRequest(environ)
        try:
            return call, await self._thread.run(lambda: answered(method, self._thread.services, call, message))
        except (BunchError, ApiError) as error:
            return call, error
        except asyncio.CancelledError:
            gone = True
            raise
        except Exception:
            extra = {"request_id": call.request_id, "trace_id": trace_id(call.traceparent), "path": call.path}
            logger.exception("unexpected error in a request", extra=extra)
            return call, INTERNAL


def _streamed(request: Any, answer: Any) -> Any:
    """An answer in a stream. `request` is None for a message that is none."""
    if not isinstance(answer, BunchError | ApiError):
        return pb.ModelStreamInferResponse(infer_response=answer)
    about = {} if request is None else {"model_name": request.model_name, "id": request.id}
    return pb.ModelStreamInferResponse(error_message=answer.message, infer_response=pb.ModelInferResponse(**about))


async def abort(context: Any, error: BunchError | ApiError, request_id: str) -> NoReturn:
    """End an RPC with an error."""
    await context.abort(STATUS_OF[error.code], details(error.message), trailing(error, request_id))
    raise AssertionError("unreachable")


def answered(method: Method, services: Services, call: HttpRequest, message: Message) -> Any:
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
            _parse(method, services, call, message)
        # No public method reads its request.
        return method.work(services, call, message.request)
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


def _parse(method: Method, services: Services, call: HttpRequest, message: Message) -> None:
    """Parse a message; a large one begins its call's turn. Raises InvalidInput, and what a turn raises."""
    if len(message.raw) >= LARGE_BYTES:
        services.large.admit(call.caller)
        call.turn = services.large.turn(call.key_id, call.hung_up)
    try:
        message.request = method.request.FromString(message.raw)
    except DecodeError:
        raise InvalidInput(f"the message is no {method.request.DESCRIPTOR.name}") from None


def environ_of(
    name: str, size: int, metadata: Sequence[tuple[str, str | bytes]] | None, left_s: float | None
) -> dict[str, Any]:
    """An RPC as the WSGI environment of the same request over HTTP; binary metadata are left out."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": f"/{SERVICE}/{quote(name)}",
        "wsgi.url_scheme": "http",
        "CONTENT_LENGTH": str(size),
    }
    for key, value in metadata or ():
        if isinstance(value, str):
            environ[f"HTTP_{key.upper().replace('-', '_')}"] = value
    if left_s is not None:
        environ["HTTP_X_TIMEOUT_MS"] = f"{max(left_s * 1000, 0.001):.3f}"
    return environ

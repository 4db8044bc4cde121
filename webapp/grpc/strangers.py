"""Keeps strangers out before gRPC receives their messages, and bounds the streams that anybody may open.

    metadata ─▶ Doorkeeper ─identify─▶ the method, which receives the message
                    └ refused: the RPC ends with nothing received

A handler of one message is called only once that is there. So a stranger gets one of streams, which reads none.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from tasks.errors import BunchError, ServiceOverloaded
from webapp.errors import ApiError
from webapp.grpc.bridge import ServiceThread
from webapp.grpc.service import METHODS, SERVICE, abort, environ_of, key_of
from webapp.identity.base import Access
from webapp.request import HttpRequest

_PREFIX = f"/{SERVICE}/"
_ACCESS = {_PREFIX + name: method.access for name, method in METHODS.items()} | {
    f"{_PREFIX}ModelStreamInfer": METHODS["ModelInfer"].access
}
MAX_PUBLIC_STREAMS = 256
"""The most streams of health and reflection at once."""


class Doorkeeper(grpc.aio.ServerInterceptor):
    """The one interceptor of the server."""

    def __init__(self, thread: ServiceThread) -> None:
        self._thread = thread
        self._public_streams = 0

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler of an RPC, or one that refuses it."""
        name = handler_call_details.method
        access = _ACCESS.get(name, Access.PUBLIC)
        if access is Access.PUBLIC:
            return self._bounded(await continuation(handler_call_details))
        call = HttpRequest(environ_of(name.removeprefix(_PREFIX), 0, handler_call_details.invocation_metadata, None))
        try:
            caller = await self._thread.run(lambda: self._thread.services.identity.identify(call, access))
        except (BunchError, ApiError) as error:
            return refusing(error, call.request_id)
        key_of.set(caller.key_id)
        return await continuation(handler_call_details)

    def _bounded(self, handler: Any) -> Any:
        """The handler of a method that anybody may call; of a stream, with its place among those."""
        if handler is None or not handler.response_streaming:
            return handler
        if self._public_streams >= MAX_PUBLIC_STREAMS:
            return refusing(ServiceOverloaded("too many streams are open at once; try again shortly", 1.0), "")
        make = grpc.stream_stream_rpc_method_handler if handler.request_streaming else _unary_stream
        work = handler.stream_stream if handler.request_streaming else handler.unary_stream
        return make(self._counted(work), handler.request_deserializer, handler.response_serializer)

    def _counted(self, work: Any) -> Any:
        async def written(request: Any, context: Any) -> None:
            self._public_streams += 1
            try:
                await work(request, context)
            finally:
                self._public_streams -= 1

        async def yielded(request: Any, context: Any) -> Any:
            self._public_streams += 1
            try:
                async for answer in work(request, context):
                    yield answer
            finally:
                self._public_streams -= 1

        return yielded if inspect.isasyncgenfunction(work) else written


_unary_stream = grpc.unary_stream_rpc_method_handler


def refusing(error: BunchError | ApiError, request_id: str) -> Any:
    """A handler that ends its RPC with an error, and receives nothing."""

    async def refuse(_: Any, context: Any) -> None:
        await abort(context, error, request_id)

    return grpc.stream_stream_rpc_method_handler(refuse)

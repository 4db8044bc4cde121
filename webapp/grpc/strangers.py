"""Keeps strangers out before gRPC receives their messages, and bounds the calls that anybody may open.

    metadata ─▶ Doorkeeper ─identify─▶ the method, which receives the message
                    └ refused: the RPC ends with nothing received

A handler of one message is called only once that is there. So who is not known yet gets one of streams, which reads
none before the caller is identified.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from tasks.errors import BunchError, InvalidInput, ServiceOverloaded
from tasks.protocol.ids import new_id
from webapp.errors import ApiError
from webapp.grpc.bridge import ServiceThread
from webapp.grpc.service import INTERNAL, METHODS, SERVICE, abort, environ_of, key_of
from webapp.identity.base import Access
from webapp.request import HttpRequest

logger = logging.getLogger(__name__)

_CREDENTIAL = "HTTP_AUTHORIZATION"
_PREFIX = f"/{SERVICE}/"
_ACCESS = {_PREFIX + name: method.access for name, method in METHODS.items()} | {
    f"{_PREFIX}ModelStreamInfer": METHODS["ModelInfer"].access
}
MAX_PUBLIC = 1024
"""The most calls at once of methods that anybody may call: a part of all calls, so that the others have theirs."""
MAX_PUBLIC_STREAMS = 256
"""The most of these that are streams, which may stay open for ever."""
_RECEIVE_S = 10.0
# For so long a credential that was let in is let in again, which saves a way to the services' thread. Only the message
# is received for that: the method identifies its caller itself.
_KNOWN_S = 1.0
_MAX_KNOWN = 4096


class Doorkeeper(grpc.aio.ServerInterceptor):
    """The one interceptor of the server."""

    def __init__(self, thread: ServiceThread) -> None:
        self._thread = thread
        self._public = 0
        self._public_streams = 0
        # Until when, and by which key, of each credential that was let in.
        self._known: dict[str, tuple[float, str]] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler of an RPC, or one that refuses it."""
        name = handler_call_details.method
        access = _ACCESS.get(name, Access.PUBLIC)
        if access is Access.PUBLIC:
            return self._bounded(await continuation(handler_call_details))
        environ = environ_of(name.removeprefix(_PREFIX), 0, handler_call_details.invocation_metadata, None)
        known = self._known.get(environ.get(_CREDENTIAL, "")) if access is Access.TENANT else None
        handler = await continuation(handler_call_details)
        if known is not None and known[0] > monotonic():
            key_of.set(known[1])
            return handler
        return None if handler is None else self._identified(handler, environ, access)

    def _identified(self, handler: Any, environ: dict[str, Any], access: Access) -> Any:
        """The handler for a credential that has to be looked at. Only its RPC knows the address of the client, by which
        wrong credentials are slowed down.
        """

        async def let_in(messages: Any, context: Any) -> None:
            call = HttpRequest({**environ, "REMOTE_ADDR": address_of(context.peer())})
            try:
                caller = await self._thread.run(lambda: self._thread.services.identity.identify(call, access))
            except (BunchError, ApiError) as error:
                await abort(context, error, call.request_id)
            except Exception:
                about = {"request_id": call.request_id, "path": environ["PATH_INFO"]}
                logger.exception("unexpected error in a request", extra=about)
                await abort(context, INTERNAL, call.request_id)
            if access is Access.TENANT:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[environ.get(_CREDENTIAL, "")] = monotonic() + _KNOWN_S, caller.key_id
            key_of.set(caller.key_id)
            await _served(handler, messages, context)

        return _as_stream(handler, let_in)

    def _bounded(self, handler: Any) -> Any:
        """The handler of a method that anybody may call, with its place among those."""
        if handler is None:
            return None
        streams = handler.response_streaming
        if self._public >= MAX_PUBLIC or (streams and self._public_streams >= MAX_PUBLIC_STREAMS):
            return refusing(
                ServiceOverloaded("too many calls without a key are open; try again shortly", 1.0), new_id()
            )

        async def counted(messages: Any, context: Any) -> None:
            self._public += 1
            self._public_streams += streams
            try:
                await _served(handler, messages, context)
            finally:
                self._public -= 1
                self._public_streams -= streams

        # The place is taken before a message is there, which may never come.
        return _as_stream(handler, counted)


def address_of(peer: str) -> str:
    """The IP address in a peer's name, such as `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`; empty without one."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else ""


def _as_stream(handler: Any, work: Callable[[Any, Any], Awaitable[None]]) -> Any:
    """A handler that runs `work` in front of `handler`, before a message is there. On the wire it is the same."""
    read = handler.request_deserializer if handler.request_streaming else None
    return grpc.stream_stream_rpc_method_handler(work, read, handler.response_serializer)


async def _served(handler: Any, messages: Any, context: Any) -> None:
    """Call a handler of any kind, once its message is there if it takes one."""
    request = messages if handler.request_streaming else await _received(handler, messages, context)
    if not handler.response_streaming:
        await context.write(await handler.unary_unary(request, context))
        return
    work = handler.stream_stream if handler.request_streaming else handler.unary_stream
    if not inspect.isasyncgenfunction(work):
        await work(request, context)
        return
    async for answer in work(request, context):
        await context.write(answer)


async def _received(handler: Any, messages: Any, context: Any) -> Any:
    """The one message of an RPC; ends the RPC if there is none."""
    try:
        async with asyncio.timeout(_RECEIVE_S):
            raw = await anext(aiter(messages))
        return raw if handler.request_deserializer is None else handler.request_deserializer(raw)
    except (TimeoutError, StopAsyncIteration, DecodeError):
        await abort(context, InvalidInput("the message is none, or does not come"), new_id())


def refusing(error: BunchError | ApiError, request_id: str) -> Any:
    """A handler that ends its RPC with an error, and receives nothing."""

    async def refuse(_: Any, context: Any) -> None:
        await abort(context, error, request_id)

    return grpc.stream_stream_rpc_method_handler(refuse)

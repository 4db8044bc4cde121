"""The gRPC server: start, health, graceful stop.

TERM ─▶ health NOT_SERVING ─▶ the clients leave (`connections`), half of `graceful_timeout` at most
     ─▶ no further calls, nor requests of streams ─▶ those under way end, within `graceful_timeout`
              └ shortly before that is over: UNAVAILABLE for those that wait
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from time import monotonic

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from config.settings import Settings, grpc_as_front
from webapp.api.kserve.models import server_is_ready
from webapp.grpc.bridge import ServiceThread
from webapp.grpc.certificate import Certificate
from webapp.grpc.connections import Connections
from webapp.grpc.proto import open_inference_pb2 as pb
from webapp.grpc.service import ROOM_BYTES, SERVICE, Service
from webapp.grpc.strangers import Doorkeeper

logger = logging.getLogger(__name__)

MAX_CALLS = 8192
"""The most calls at once; gRPC itself refuses others with RESOURCE_EXHAUSTED."""

_HEALTH_EVERY_S = 1.0
# How long before the end of the graceful timeout remaining callers are told, so that the answers reach them.
_LAST_MOMENT_S = 1.0
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Server:
    """One process's server. `serve` returns an exit status."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = ServiceThread(grpc_as_front(settings))
        self._connections = Connections(settings.graceful_timeout_s / 2)
        self._service = Service(self._thread, self._connections)
        self._health = health.aio.HealthServicer()

    async def serve(self) -> int:
        """Serve until TERM or INT."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        self._thread.start()
        settings = self._settings
        server = grpc.aio.server(
            interceptors=(Doorkeeper(self._thread),),
            maximum_concurrent_rpcs=MAX_CALLS,
            options=(
                ("grpc.max_receive_message_length", settings.largest_body_bytes + ROOM_BYTES),
                ("grpc.max_send_message_length", -1),
                # Two servers on one port would share its calls without anybody noticing.
                ("grpc.so_reuseport", 0),
                self._connections.option,
            ),
        )
        server.add_generic_rpc_handlers((self._service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name, health.SERVICE_NAME)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        host = f"[{settings.grpc_host}]" if ":" in settings.grpc_host else settings.grpc_host
        address = f"{host}:{settings.grpc_port}"
        if settings.tls_cert:
            certificate = Certificate(settings)
            loop.add_signal_handler(signal.SIGHUP, certificate.renew)
            server.add_secure_port(address, certificate.credentials())
        else:
            server.add_insecure_port(address)
        await server.start()
        logger.info("gRPC at %s:%d", host, settings.grpc_port)
        watching = asyncio.create_task(self._watch())
        await stop.wait()
        watching.cancel()
        await self._stop(server)
        return 0

    async def _stop(self, server: grpc.aio.Server) -> None:
        end = monotonic() + self._settings.graceful_timeout_s
        await self._health.enter_graceful_shutdown()
        await self._connections.leave()
        self._service.stop()
        limit_s = end - monotonic()
        last_s = min(_LAST_MOMENT_S, limit_s / 4)
        stopping = asyncio.create_task(server.stop(limit_s))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(stopping), limit_s - last_s)
        if not stopping.done():
            logger.warning("graceful_timeout is nearly over: refusing the calls that still wait")
            self._thread.refuse()
            await stopping
        self._thread.stop()

    async def _watch(self) -> None:
        """Tell health what readiness says, for the whole server and for the service."""
        while True:
            is_ready = await self._thread.run(lambda: server_is_ready(self._thread.services))
            for name in ("", SERVICE):
                await self._health.set(name, _SERVING if is_ready else _NOT_SERVING)
            await asyncio.sleep(_HEALTH_EVERY_S)

"""A small OTLP collector: it receives spans over HTTP, as Jaeger does, and keeps them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    links: frozenset[tuple[str, str]]
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int
    failed: bool
    tracestate: str = ""


@dataclass
class Collector:
    """The collector. `endpoint` is the value for BUNCH_OTLP_ENDPOINT."""

    endpoint: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [each for each in self.spans if each.name == name]

    def children(self, of: ReceivedSpan) -> list[ReceivedSpan]:
        return [each for each in self.spans if (each.trace_id, each.parent_id) == (of.trace_id, of.span_id)]


@contextmanager
def collector() -> Iterator[Collector]:
    received = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.paths.add(self.path)
            received.spans += _spans(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _spans(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            service=_attributes(resource.resource.attributes).get("service.name", ""),
            name=span.name,
            kind=span.kind,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            links=frozenset((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            attributes=_attributes(span.attributes),
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            failed=span.status.code == 2,
            tracestate=span.trace_state,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in pairs}

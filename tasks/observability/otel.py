"""The only module that imports OpenTelemetry; it is imported only where `BUNCH_OTLP_ENDPOINT` is set.

The process that begins a trace decides whether it is sampled, before it calls the SDK: an unsampled request costs one
random number. A thread exports spans in batches over HTTP; spans that cannot be exported are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from config.settings import Settings
from tasks.protocol import traceparent

_EXPORT_EVERY_MS = 1000
_TIMEOUT_S = 5
# A batch's span links to each of its requests; the SDK's default of 128 is less than a batch may hold.
_MAX_LINKS = 1024


class Remote(NamedTuple):
    """A span of another process, from the headers that it sent; `traceparent` is valid, or empty for none."""

    traceparent: str
    tracestate: str = ""


Attributes = Mapping[str, str | int | float | bool]


class Spans:
    """Makes and exports the spans of one process."""

    def __init__(self, settings: Settings, service: str) -> None:
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": service, "service.namespace": "bunch"}),
            span_limits=SpanLimits(max_links=_MAX_LINKS),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(
            endpoint=traces_url(settings.otlp_endpoint), headers=headers_of(settings.otlp_headers), timeout=_TIMEOUT_S
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_EXPORT_EVERY_MS))
        self._tracer = self._provider.get_tracer("bunch")
        # It repeats the same error at each failed export.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: Remote | Span | None,
        start_ns: int | None = None,
        attributes: Attributes | None = None,
        links: Sequence[Remote | Span] = (),
    ) -> Span:
        """A span below `parent`, which may be ours or of another process; without one, the root of a new trace."""
        return self._tracer.start_span(
            name,
            context=_context(parent),
            kind=kind,
            attributes=dict(attributes or {}),
            links=[Link(_span_context(each)) for each in links],
            start_time=start_ns,
        )

    def stop(self) -> None:
        """Export the remaining spans, within the time limit of one export."""
        self._provider.shutdown()


def traceparent_of(span: Span) -> str:
    context = span.get_span_context()
    return traceparent.make(context.trace_id, context.span_id)


def fail(span: Span, kind: str, why: str) -> None:
    """Mark a span as failed. `kind` has few values, for aggregation; `why` is for people."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, why))


def traces_url(endpoint: str) -> str:
    """The URL for traces. `http://host:4318` is a collector; an endpoint with a path is used as it is."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + "/v1/traces"


def headers_of(given: str) -> dict[str, str]:
    """Parse `name=value,…`; values are percent-encoded where they hold a comma, as OpenTelemetry specifies."""
    pairs = (each.partition("=") for each in given.split(",") if each.strip())
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


def _context(parent: Remote | Span | None) -> Context:
    if parent is None or (isinstance(parent, Remote) and not parent.traceparent):
        return Context()
    return set_span_in_context(NonRecordingSpan(_span_context(parent)), Context())


def _span_context(of: Remote | Span) -> SpanContext:
    if isinstance(of, Span):
        return of.get_span_context()
    ids = of.traceparent
    return SpanContext(
        int(ids[3:35], 16),
        int(ids[36:52], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(ids[53:55], 16)),
        trace_state=TraceState.from_header([of.tracestate]) if of.tracestate else None,
    )

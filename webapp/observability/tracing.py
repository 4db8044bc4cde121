"""One span for each sampled HTTP request; later spans of the request are below it, or linked."""

from __future__ import annotations

import random

from opentelemetry.trace import Span, SpanKind

from config.settings import Settings
from tasks.observability.otel import Remote, Spans, fail, traceparent_of
from tasks.protocol import traceparent
from webapp.request import STATUS_LINES, HttpRequest, HttpResponse


class RequestTracer:
    """Makes the spans. Imported, and constructed, only where spans are exported."""

    def __init__(self, settings: Settings) -> None:
        self._ratio = settings.trace_sample_ratio
        self._spans = Spans(settings, "bunch-web")

    def begin(self, call: HttpRequest) -> Span | None:
        """Begin a span if the request is sampled: the caller's header decides, else the ratio."""
        parent = call.traceparent
        if not (traceparent.is_sampled(parent) if parent else random.random() < self._ratio):
            return None
        span = self._spans.start(
            f"{call.method} {call.route}",
            SpanKind.SERVER,
            Remote(parent, call.tracestate),
            attributes={
                "http.request.method": call.method,
                "http.route": call.route,
                "url.path": call.path,
                "url.scheme": call.scheme,
            },
        )
        call.trace_with(span, traceparent_of(span))
        return span

    def end(self, span: Span, answer: HttpResponse) -> None:
        span.set_attribute("http.response.status_code", answer.status)
        span.set_attribute("bunch.request_id", answer.request_id)
        if answer.status >= 500:
            fail(span, str(answer.status), STATUS_LINES[answer.status])
        span.end()

    def stop(self) -> None:
        self._spans.stop()

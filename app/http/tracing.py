"""Spans for OpenTelemetry, where OTEL_EXPORTER_OTLP_ENDPOINT says where they go (`faultbook[telemetry]`).

The framework's own spans hold the query, into which people paste their errors. Ours hold the route, the
method, the status and the request id, and continue the trace that a request belongs to.
"""

from __future__ import annotations

import logging
import os

from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind, StatusCode, Tracer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.observe import template

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})

log = logging.getLogger("faultbook.tracing")


class Spans:
    """One span for each request, behind the layer that gives it its id."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self.app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNTRACED:
            await self.app(scope, receive, send)
            return
        carried = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method = scope["method"]
        with self._tracer.start_as_current_span(
            method,
            context=extract(carried),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": method,
                "faultbook.request_id": scope["state"]["request_id"],
            },
            # An exception's message may quote what was pasted.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:

            async def told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= 500:
                        span.set_status(StatusCode.ERROR)
                await send(message)

            try:
                await self.app(scope, receive, told)
            finally:
                route = template(scope)
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)


def configured() -> Tracer | None:
    """What makes spans; None where the environment names no place for them, or the extra is missing."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("no spans are sent: pip install 'faultbook[telemetry]'")
        return None
    name = os.environ.get("OTEL_SERVICE_NAME", "faultbook")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("faultbook")

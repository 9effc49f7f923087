"""Spans say which route answered how, and nothing of what was sent."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from app.http.observe import Observe
from app.http.tracing import Spans, configured
from app.main import create_app
from app.settings import Settings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_span_continues_the_trace_and_holds_no_query() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = create_app(Settings(), routers=[])
    at = next(place for place, layer in enumerate(app.user_middleware) if layer.cls is Observe)
    app.user_middleware.insert(at + 1, type(app.user_middleware[at])(Spans, provider.get_tracer("test")))
    client = TestClient(app)
    parent = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "X-Request-Id": "r1"}
    client.get("/about/problems/conflict?q=pasted-secret", headers=parent)
    client.get("/nowhere/pasted-secret")
    client.get("/healthz")
    first, second = exporter.get_finished_spans()
    assert first.name == "GET /about/problems/{slug}"
    assert first.context.trace_id == int(TRACE, 16)
    assert first.attributes is not None
    assert dict(first.attributes) == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "http.route": "/about/problems/{slug}",
        "faultbook.request_id": "r1",
    }
    assert second.name == "GET unmatched"
    assert "pasted-secret" not in "".join(span.to_json() for span in (first, second))


def test_without_a_place_for_spans_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert configured() is None
    app = create_app(Settings(), routers=[])
    assert Spans not in [layer.cls for layer in app.user_middleware]


def test_spans_are_sent_where_the_environment_says() -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = Thread(target=server.serve_forever)
    thread.start()
    code = (
        "from starlette.testclient import TestClient; from app.main import create_app;"
        "from app.settings import Settings;"
        "TestClient(create_app(Settings(), routers=[])).get('/robots.txt?q=pasted-secret')"
    )
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "PATH": "/usr/bin:/bin",
    }
    try:
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    ((path, body),) = received
    assert path == "/v1/traces"
    assert b"GET /robots.txt" in body
    assert b"pasted-secret" not in body
    assert json.dumps("faultbook")[1:-1].encode() in body

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.testclient import TestClient

from app.http.headers import DATA_POLICY, PAGE_POLICY
from app.http.logs import RequestIdFilter
from app.http.observe import ACCESS, request_id, template
from app.main import create_app
from app.settings import Settings

Ask = Callable[..., Any]


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def app(seen: list[str]) -> FastAPI:
    router = APIRouter()

    @router.get("/api/id/{name}")
    async def identity(request: Request, name: str) -> dict[str, str]:
        logging.getLogger("faultbook.test").warning("inside")
        return {"state": request.state.request_id, "context": request_id.get()}

    @router.get("/page")
    async def page() -> HTMLResponse:
        return HTMLResponse("<p>x</p>")

    @router.get("/own")
    async def own() -> HTMLResponse:
        return HTMLResponse("<p>x</p>", headers={"Content-Security-Policy": "default-src 'self'"})

    @router.post("/api/write")
    async def write() -> str:
        return "written"

    @router.get("/api/stream")
    async def stream(request: Request) -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            while not await request.is_disconnected():
                seen.append("event")
                yield b"data: x\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return create_app(Settings(), routers=[router])


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app)


@pytest.mark.parametrize("given", ["a", "deploy-7:4f/9=+._", "x" * 64])
def test_a_sane_request_id_is_kept(client: TestClient, given: str) -> None:
    answer = client.get("/api/id/x", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given
    assert answer.json() == {"state": given, "context": given}
    assert request_id.get() == "-"


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\nb", "<script>", "a;b", 'a"b', "é"])
def test_any_other_is_replaced(app: FastAPI, ask: Ask, given: str) -> None:
    answers = [ask(app, "GET", "/api/id/x", x_request_id=given) for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(re.fullmatch("[0-9a-f]{16}", found) for found in ids)
    assert ids[0] != ids[1]


def test_one_id_is_answered_whatever_happened(client: TestClient) -> None:
    for method, path in (("GET", "/api/nothing"), ("POST", "/page"), ("OPTIONS", "/page"), ("HEAD", "/page")):
        assert len(client.request(method, path).headers.get_list("x-request-id")) == 1


def test_records_carry_the_request_id(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(RequestIdFilter())
    client.get("/api/id/x", headers={"X-Request-Id": "mine"})
    logging.getLogger("faultbook.test").warning("outside")
    found = [
        (record.message, vars(record)["request_id"])
        for record in caplog.records
        if record.name == "faultbook.test"
    ]
    assert found == [("inside", "mine"), ("outside", "-")]


def test_the_access_log_has_one_line_without_query_or_body(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, ACCESS):
        client.post("/api/write?q=hunter2", content=b"hunter2", headers={"Authorization": "hunter2"})
        client.get("/api/a%0Ab%20" + "c" * 500)
    first, second = (record.getMessage() for record in caplog.records if record.name == ACCESS)
    assert re.fullmatch(r"POST /api/write 200 \d+\.\d ms", first)
    assert second.startswith("GET /api/a%0Ab%20ccc")
    assert " 404 " in second
    assert len(second) < 250
    assert "hunter2" not in caplog.text


def test_uvicorns_own_access_log_which_prints_queries_is_silent(app: FastAPI) -> None:
    logger = logging.getLogger("uvicorn.access")
    before = logger.level
    try:
        with TestClient(app):
            assert not logger.isEnabledFor(logging.ERROR)
    finally:
        logger.setLevel(before)


def test_pages_and_data_have_their_policies(client: TestClient) -> None:
    assert client.get("/page").headers["content-security-policy"] == PAGE_POLICY
    assert client.get("/api/id/x").headers["content-security-policy"] == DATA_POLICY
    assert client.get("/own").headers["content-security-policy"] == "default-src 'self'"
    assert "unsafe" not in PAGE_POLICY
    assert "'none'" in PAGE_POLICY.split("; ")[0]


@pytest.mark.parametrize("path", ["/page", "/api/id/x", "/api/nothing", "/static/style.css", "/metrics"])
def test_every_answer_is_guarded(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_any_site_may_read(client: TestClient) -> None:
    for method in ("GET", "HEAD"):
        headers = client.request(method, "/api/id/x", headers={"Origin": "https://a.example"}).headers
        assert headers["access-control-allow-origin"] == "*"
        assert {"ETag", "Link"} <= set(headers["access-control-expose-headers"].split(", "))
        assert "access-control-allow-credentials" not in headers


def test_no_site_may_write(client: TestClient) -> None:
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    for answer in (
        client.post("/api/write", headers={"Origin": "https://a.example"}),
        client.options("/api/write", headers=asked),
    ):
        assert answer.status_code in (403, 204)
        assert "access-control-allow-origin" not in answer.headers


def test_a_preflight_for_reading_is_granted(client: TestClient) -> None:
    asked = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "if-none-match",
    }
    answer = client.options("/api/id/x", headers=asked)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-methods"] == "GET, HEAD"
    assert "If-None-Match" in answer.headers["access-control-allow-headers"]


def test_head_is_get_without_the_body(client: TestClient) -> None:
    get, head = client.get("/page"), client.head("/page")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]
    missing = client.head("/api/nothing")
    assert (missing.status_code, missing.content) == (404, b"")
    assert client.head("/api/write").status_code == 405


def test_the_server_still_sees_head_and_metrics_the_route(app: FastAPI) -> None:
    scope = {"type": "http", "method": "HEAD", "path": "/page", "headers": [], "query_string": b""}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        # uvicorn compares the body with Content-Length unless this says HEAD.
        sent.append((scope["method"], message.get("body")))

    asyncio.run(app(scope, receive, send))
    assert sent == [("HEAD", None), ("HEAD", b"")]
    assert template(scope) == "/page"


def test_head_ends_a_stream_that_never_would(client: TestClient, seen: list[str]) -> None:
    answer = client.head("/api/stream")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert len(seen) <= 1


def test_only_the_status_goes_out_of_a_broken_stream() -> None:
    router = APIRouter()

    @router.get("/api/broken")
    async def broken() -> StreamingResponse:
        async def part() -> AsyncIterator[bytes]:
            yield b"half"
            raise RuntimeError("lost")

        return StreamingResponse(part())

    client = TestClient(create_app(Settings(), routers=[router]))
    with pytest.raises(RuntimeError, match="lost"):
        client.get("/api/broken")

"""The log: fields for machines, and nothing of what a request brought."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO

import pytest
from fastapi import APIRouter
from starlette.testclient import TestClient

from app.access.keys import digest_of, new_key
from app.http.logs import JsonFormatter, RequestIdFilter, TextFormatter, configure_logging
from app.main import create_app
from app.settings import Settings


@pytest.fixture(params=["json", "text"])
def lines(request: pytest.FixtureRequest) -> Iterator[StringIO]:
    """What our loggers write, in either form."""
    written = StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(RequestIdFilter())
    handler.setFormatter(JsonFormatter() if request.param == "json" else TextFormatter())
    logger = logging.getLogger("faultbook")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(before)


def service() -> TestClient:
    router = APIRouter()

    @router.post("/api/broken")
    async def broken() -> None:
        raise ValueError("pasted-secret")

    return TestClient(create_app(Settings(), routers=[router]))


def test_an_unexpected_exception_is_located_but_not_quoted(lines: StringIO) -> None:
    answer = service().post("/api/broken", content=b"pasted-secret", headers={"X-Request-Id": "r1"})
    assert answer.status_code == 500
    text = lines.getvalue()
    assert "pasted-secret" not in text
    assert "ValueError" in text
    assert "test_logs.py" in text
    assert "r1" in text


def test_a_request_is_an_object_with_its_fields() -> None:
    key = new_key()
    entries = f"ci:read:sha256-{digest_of(key)}"
    record = None

    class Keep(logging.Handler):
        def emit(self, found: logging.LogRecord) -> None:
            nonlocal record
            RequestIdFilter().filter(found)
            record = found

    logger = logging.getLogger("faultbook.access")
    handler = Keep()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        client = TestClient(create_app(Settings(api_keys=entries), routers=[]))
        told = {"Authorization": f"Bearer {key}", "X-Request-Id": "r2"}
        client.get("/api/nothing?q=pasted-secret", headers=told)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert record is not None
    line = json.loads(JsonFormatter().format(record))
    assert line.pop("time").endswith("+00:00")
    assert line.pop("milliseconds") >= 0
    message = line.pop("message")
    assert message.startswith("GET /api/nothing 404 ")
    assert line == {
        "level": "info",
        "logger": "faultbook.access",
        "requestId": "r2",
        "method": "GET",
        "path": "/api/nothing",
        "route": "unmatched",
        "status": 404,
        "key": "ci",
    }


def test_beside_a_host_that_logs_itself_nothing_is_configured() -> None:
    before = list(logging.getLogger("faultbook").handlers)
    configure_logging("json")  # pytest's own handlers are on the root logger
    assert logging.getLogger("faultbook").handlers == before


def test_where_nobody_reads_a_terminal_lines_are_json() -> None:
    code = (
        "from app.http.logs import configure_logging; import logging; configure_logging();"
        "logging.getLogger('faultbook.x').warning('a \\n b'); logging.getLogger('uvicorn.error').error('c')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [json.loads(line)["message"] for line in ended.stderr.splitlines()] == ["a \n b", "c"]

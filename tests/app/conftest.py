"""A service of its own for each test, and a client that sends what no HTTP library would."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import PREFIX, Settings

Ask = Callable[..., "Answer"]
Build = Callable[..., FastAPI]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Headers
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith(PREFIX)]:
        monkeypatch.delenv(name)


@pytest.fixture
def build() -> Build:
    """Builds the shell with one `router` and without the capabilities."""

    def make(router: APIRouter | None = None, **settings: object) -> FastAPI:
        return create_app(Settings(**settings), routers=[router] if router else [])  # type: ignore[arg-type]

    return make


@pytest.fixture
def client(build: Build) -> Iterator[TestClient]:
    """A client of the shell alone."""
    with TestClient(build()) as client:
        yield client


@pytest.fixture
def ask() -> Ask:
    """One request as ASGI messages: the body in the given chunks, headers exactly as given."""

    def send(
        app: FastAPI,
        method: str,
        path: str,
        chunks: Iterable[bytes] = (),
        query: bytes = b"",
        **headers: str,
    ) -> Answer:
        messages: list[dict[str, Any]] = []
        parts = list(chunks)

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            return {"type": "http.request", "body": b"", "more_body": False}

        async def collect(message: Any) -> None:
            messages.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
            "query_string": query,
            "root_path": "",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
        }
        asyncio.run(app(scope, receive, collect))
        start, *rest = messages
        body = b"".join(message.get("body", b"") for message in rest)
        return Answer(start["status"], Headers(raw=start["headers"]), body)

    return send

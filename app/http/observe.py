"""What an operator sees of each request: its id, one access line, its count and latency.

Neither query text nor bodies are logged: people paste their logs into both.
"""

from __future__ import annotations

import logging
import re
import time
from contextvars import ContextVar
from functools import lru_cache
from random import getrandbits
from typing import cast
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http import lines
from app.http.metrics import Metrics

ACCESS = "faultbook.access"
HEADER = b"x-request-id"

# A client's own id is kept if it can do no harm in a log or a header.
_SANE = re.compile(rb"[A-Za-z0-9._:/+=-]{1,64}")
# What proxies log for a client that went away before its answer began.
_CLOSED = 499
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

request_id: ContextVar[str] = ContextVar("request_id", default="-")
log = logging.getLogger(ACCESS)


class Observe:
    """The outermost layer. Sets `request.state.request_id`, the context variable and X-Request-Id."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        method = scope["method"]
        status = _CLOSED
        name = identify(scope)
        scope.setdefault("state", {})["request_id"] = name
        token = request_id.set(name)

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (HEADER, name.encode())]
            await send(message)

        try:
            await self.app(scope, receive, tagged)
        finally:
            seconds = time.perf_counter() - began
            label = method if method in _METHODS else "other"
            route = template(scope)
            self.metrics.observe(label, route, status, seconds)
            if log.isEnabledFor(logging.INFO):
                _note(scope, label, route, status, seconds * 1000)
            request_id.reset(token)


def _note(scope: Scope, method: str, route: str, status: int, milliseconds: float) -> None:
    """The request's line in the log: every request pays for it, so where the log is our own it is written
    without the detour through a record.
    """
    path = _quoted(scope["path"])
    caller = scope["state"].get("caller")
    key = caller.name if caller is not None else ""
    message = f"{method} {path} {status} {milliseconds:.1f} ms"
    if lines.direct is not None and log.propagate and not log.handlers:
        name = scope["state"]["request_id"]
        fields = (method, path, route, status, milliseconds)
        lines.direct(lines.access_line(ACCESS, message, name, fields, key))
        return
    named = {
        "method": method,
        "path": path,
        "route": route,
        "status": status,
        "milliseconds": round(milliseconds, 3),
        **({"key": key} if key else {}),
    }
    log.handle(
        log.makeRecord(
            ACCESS,
            logging.INFO,
            __file__,
            0,
            "%s",
            (message,),
            None,
            extra={"fields": named},
        )
    )


@lru_cache(maxsize=4096)
def _quoted(path: str) -> str:
    """The first 200 characters of a path, with nothing in them that a log or JSON would take for its own."""
    return quote(path[:200], errors="replace")[:200]


def identify(scope: Scope) -> str:
    """The client's request id if it is a sane one, else a new one of 16 hex digits."""
    for name, value in scope["headers"]:
        if name == HEADER and _SANE.fullmatch(value):
            return cast(str, value.decode())
    return f"{getrandbits(64):016x}"


def template(scope: Scope) -> str:
    """The route's path with its parameters unfilled: a label of metrics, since paths are unbounded."""
    return getattr(scope.get("route"), "path_format", "unmatched")

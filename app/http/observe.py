"""What an operator sees of each request: its id, one access line, its count and latency.

Neither query text nor bodies are logged: people paste their logs into both.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from contextvars import ContextVar
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
            self.metrics.observe(label, template(scope), status, seconds)
            path = quote(scope["path"], errors="replace")[:200]
            log.info("%s %s %d %.1f ms", label, path, status, seconds * 1000)
            request_id.reset(token)


def identify(scope: Scope) -> str:
    """The client's request id if it is a sane one, else a new one of 16 hex digits."""
    given = next((value for key, value in scope["headers"] if key == HEADER), b"")
    return given.decode() if _SANE.fullmatch(given) else secrets.token_hex(8)


def template(scope: Scope) -> str:
    """The route's path with its parameters unfilled: a label of metrics, since paths are unbounded."""
    return getattr(scope.get("route"), "path_format", "unmatched")


class RequestIdFilter(logging.Filter):
    """Gives every record the id of the request that it was logged for, `-` outside of one."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


def configure_logging() -> None:
    """Our loggers to standard error with request ids, unless the host has configured logging itself.

    uvicorn's access log is silenced, since it prints query strings and the line above replaces it.
    """
    logging.getLogger("uvicorn.access").setLevel(logging.CRITICAL)
    ours = logging.getLogger("faultbook")
    if ours.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.addFilter(RequestIdFilter())
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"))
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False

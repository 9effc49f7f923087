"""Headers of every answer, and methods that every address has: security, CORS for readers, HEAD, OPTIONS."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
DATA_POLICY = "default-src 'none'; frame-ancestors 'none'"
_DATA, _PAGE = (
    (
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),
    )
    for policy in (DATA_POLICY, PAGE_POLICY)
)
EXPOSED = "ETag, Link, X-Request-Id"
_OPEN = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", EXPOSED.encode()),
)
_READS = ("GET", "HEAD")
_PREFLIGHT = (
    (b"access-control-allow-methods", ", ".join(_READS).encode()),
    (b"access-control-allow-headers", b"Accept, If-None-Match, X-Request-Id"),
    (b"access-control-max-age", b"600"),
)


class AnswerHeaders:
    """A content policy by media type, no sniffing, and no referrer elsewhere: a query may hold a log.

    CORS: any site may read. Other methods get no such header, so browsers keep them from foreign pages.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        preflight = scope["method"] == "OPTIONS" and _is_preflight(scope)
        reads = preflight or scope["method"] in _READS

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Raw bytes, and one pass: every answer goes through here.
                headers = list(message.get("headers", ()))
                given = dict(headers)
                page = given.get(b"content-type", b"").startswith(b"text/html")
                headers += [item for item in (_PAGE if page else _DATA) if item[0] not in given]
                if reads:
                    headers += _OPEN
                if preflight:
                    headers += _PREFLIGHT
                message["headers"] = headers
            await send(message)

        await self.app(scope, receive, headed)


def _is_preflight(scope: Scope) -> bool:
    """Whether a browser asks on behalf of a page elsewhere if it may read."""
    return Headers(scope=scope).get("access-control-request-method", "") in _READS


class HeadAsGet:
    """HEAD for every address that has GET: the same answer without its body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        # A copy: the server looks at its own scope to see whether a body of the announced length must follow.
        inner = {**scope, "method": "GET"}
        answered = False

        async def headers_only(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                scope["route"] = inner.get("route")  # metrics read there which route answered
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered = True

        async def until_answered() -> Message:
            # A stream of events never ends by itself: tell it that its reader has left.
            return {"type": "http.disconnect"} if answered else await receive()

        await self.app(inner, until_answered, headers_only)

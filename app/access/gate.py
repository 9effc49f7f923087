"""The gate in front of every route: which key a request brings, what it may do, and how often."""

from __future__ import annotations

import base64
import binascii
import logging
import re
from itertools import chain
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.caller import EVERYBODY, Caller
from app.access.caller import Scope as Permission
from app.access.keys import Keyring
from app.access.rates import Limits, Standing, network_of
from app.errors import Forbidden, HeadersTooLarge, NotFound, Problem, TooManyRequests, Unauthorized
from app.http.problems import respond
from app.http.urls import path_of

OPEN_PATHS = (
    "/about/",
    "/capture.py",
    "/docs",
    "/healthz",
    "/llms.txt",
    "/openapi.json",
    "/readyz",
    "/robots.txt",
    "/schema.json",
    "/sitemap.xml",
    "/static/",
)
"""What needs no key: whether it is alive, and what is the same for every installation."""

UNCOUNTED = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked by machines at a fixed pace, and what an operator needs most under load."""

READS = ("GET", "HEAD", "OPTIONS")
LOOKUPS = frozenset({"/", "/api/match", "/mcp"})
"""What is asked with POST because it is too long for an address; a tool of `/mcp` that diagnoses looks at the
caller itself."""

# The framework's own patterns end in `$`, which also matches before a last line feed: of an address with
# one the router and this gate would think differently.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")

log = logging.getLogger("faultbook.access")


def needed(method: str, path: str) -> Permission | None:
    """The scope that a request needs where the service has keys; None for what is open to all."""
    if path == "/metrics":
        return Permission.ADMIN
    if any(path == known or (known[-1] == "/" and path.startswith(known)) for known in OPEN_PATHS):
        return None
    return Permission.READ if method in READS or path in LOOKUPS else Permission.DIAGNOSE


class Gate:
    """Sets `request.state.caller`; answers 401, 403, 429, 431, and 404 of no possible address, itself.

    keys        the service's keys; an empty ring lets everybody do everything
    anonymous   whether a request without a key may read, where there are keys
    limiter     requests a caller may make; None: any number
    most_bytes  of a request's header fields together
    pages       hosts whose pages may act without a key; None: all may
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keyring,
        *,
        anonymous: bool,
        limiter: Limits | None,
        most_bytes: int,
        pages: frozenset[str] | None = None,
    ) -> None:
        self.app = app
        self._keys = keys
        self._anonymous = Caller(scopes=frozenset({Permission.READ} if anonymous else ()))
        self._limiter = limiter
        self._most_bytes = most_bytes
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            state = scope.setdefault("state", {})
            try:
                caller = state["caller"] = await self._admit(scope)
            except Problem as problem:
                send = _with_rate(send, state.get("rate"))
                await respond(Request(scope, receive), problem)(scope, receive, send)
                return
            send = _with_rate(send, state.get("rate"))
            if caller.name:
                send = _kept_private(send)
        await self.app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Caller:
        if sum(map(len, chain.from_iterable(scope["headers"]))) > self._most_bytes:
            raise HeadersTooLarge(f"The header fields take more than {self._most_bytes:,} bytes.")
        path = path_of(scope)
        if _CONTROL.search(path):
            raise NotFound("No address here holds a control character.")
        if not self._keys:
            await self._count(scope, path, EVERYBODY)
            if self._pages is not None and needed(scope["method"], path) is Permission.DIAGNOSE:
                _refuse_other_pages(scope, self._pages)
            return EVERYBODY
        try:
            caller = self._caller(scope)
        except Unauthorized:
            await self._count(scope, path, self._anonymous)
            raise
        await self._count(scope, path, caller)
        permission = needed(scope["method"], path)
        if permission is None or caller.may(permission):
            return caller
        if caller.name:
            raise Forbidden(f"The key {caller.name} does not have the scope {permission}.")
        raise Unauthorized(f"This needs a key with the scope {permission}.", basic=_is_page(path))

    async def _count(self, scope: Scope, path: str, caller: Caller) -> None:
        if self._limiter is None or path in UNCOUNTED:
            return
        client = scope.get("client")
        # A key's name holds no blank: an address cannot pass for one.
        standing = await self._limiter.count(
            caller.name or f"from {network_of(client[0]) if client else 'nowhere'}"
        )
        scope["state"]["rate"] = standing
        if standing.wait:
            raise TooManyRequests(f"More than {standing.rate}.", retry_after=standing.wait)

    def _caller(self, scope: Scope) -> Caller:
        """Whose key the Authorization header brings; Unauthorized where it brings none that is known."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if not given:
            return self._anonymous
        page = _is_page(path_of(scope))
        if len(given) > 1:
            raise Unauthorized("There is more than one Authorization header.", basic=page)
        scheme, _, credentials = given[0].decode("latin-1").partition(" ")
        token = credentials.strip()
        if scheme.lower() == "basic":
            _refuse_foreign_page(scope)
            token = _password(token)
        elif scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
            raise Unauthorized("Send `Authorization: Bearer KEY`.", basic=page)
        caller = self._keys.find(token)
        if caller is None:
            raise Unauthorized("This key is not one of this service.", wrong=True, basic=page)
        return caller


def _with_rate(send: Send, standing: Standing | None) -> Send:
    """Answers that say how much of the rate is left; as they are where none is counted."""
    if standing is None:
        return send

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *standing.fields()]
        await send(message)

    return told


def _kept_private(send: Send) -> Send:
    """What a key has opened is no shared cache's: `public` would let it answer others too (RFC 9111, 3.5)."""

    async def private(message: Message) -> None:
        if message["type"] == "http.response.start":
            # A new list: answers that are made once share theirs.
            message["headers"] = [
                (name, value.replace(b"public", b"private") if name == b"cache-control" else value)
                for name, value in message.get("headers", ())
            ]
        await send(message)

    return private


def _is_page(path: str) -> bool:
    return not path.startswith(("/api/", "/mcp", "/data/", "/metrics"))


def _password(credentials: str) -> str:
    """The key in what a browser sends after it has asked for a password; the user's name does not matter."""
    try:
        return base64.b64decode(credentials, validate=True).decode("utf-8", "replace").partition(":")[2]
    except (binascii.Error, ValueError):
        raise Unauthorized("The Authorization header is not Basic credentials.", basic=True) from None


def _refuse_other_pages(scope: Scope, pages: frozenset[str]) -> None:
    """On loopback whoever asks is on this machine, but a browser there asks for pages of others too: one
    whose name is made to lead to loopback is, to the browser, this service's own.
    """
    for name, value in scope["headers"]:
        if name == b"origin" and _host_of(value) not in pages:
            raise Forbidden(
                "Only this service's own pages may act without a key; behind a proxy FAULTBOOK_PUBLIC_URL "
                "says which host's they are."
            )


def _host_of(origin: bytes) -> str | None:
    try:
        return urlsplit(origin.decode("latin-1")).hostname
    except ValueError:
        return None


def _refuse_foreign_page(scope: Scope) -> None:
    """A browser adds a password that it was told once to whatever request a page makes, so other sites' pages
    may not make any that acts.
    """
    site = next((value for name, value in scope["headers"] if name == b"sec-fetch-site"), b"none")
    if scope["method"] not in ("GET", "HEAD") and site not in (b"same-origin", b"none"):
        raise Forbidden("A page of another site may not act with this browser's key.")

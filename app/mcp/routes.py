"""/mcp: streamable HTTP without sessions, so that any replica answers any request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.access.caller import Scope as Permission
from app.access.caller import caller_of
from app.access.quotas import quotas_of
from app.diagnose.questions import read_question
from app.errors import Forbidden, MethodNotAllowed, Unavailable
from app.http.metrics import Metrics
from app.http.problems import respond
from app.jobs.routes import jobs_of
from app.mcp.tools import Tools
from app.settings import Settings, is_loopback

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings

START_LIMIT = 30.0
"""Seconds that a first request waits for the protocol's implementation to be imported."""


class Door:
    """The protocol's own application in one service, started by the first request that asks for it."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._task: asyncio.Task[None] | None = None

    async def started(self) -> StreamableHTTPSessionManager:
        """What handles requests; ImportError or TimeoutError where it does not start."""
        if self._manager is None or (self._manager.done() and self._manager.exception() is not None):
            self._manager = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._serve(self._manager))
        return await asyncio.wait_for(asyncio.shield(self._manager), START_LIMIT)

    async def close(self) -> None:
        """Stop what was started."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _serve(self, manager: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """Hold the protocol's tasks, which have to end where they began."""
        try:
            made = await run_in_threadpool(_manager, self._settings, self._metrics)
        except ImportError as error:
            manager.set_exception(error)
            return
        async with made.run():
            manager.set_result(made)
            await asyncio.Event().wait()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Close the door with the service."""
    app.state.mcp = door = Door(app.state.settings, app.state.metrics)
    try:
        yield
    finally:
        await door.close()


class Endpoint:
    """The route's application: no function, so that the framework passes the request on as it is."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = ROUTE  # where metrics and the log look
        # With GET a client listens for what a session's server says by itself. Without sessions there is
        # nothing to say, and the stream would be held open for ever.
        if scope["method"] != "POST":
            refused = MethodNotAllowed("Messages are sent with POST.", headers={"Allow": "OPTIONS, POST"})
            await respond(Request(scope, receive), refused)(scope, receive, send)
            return
        try:
            manager = await cast(Door, scope["app"].state.mcp).started()
        except (ImportError, TimeoutError):
            problem = Unavailable("The Model Context Protocol cannot be served now.")
            await respond(Request(scope, receive), problem)(scope, receive, send)
            return
        await manager.handle_request(scope, receive, send)


def _manager(settings: Settings, metrics: Metrics) -> StreamableHTTPSessionManager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from app.mcp.server import build

    return StreamableHTTPSessionManager(
        # Its application is not of use here: path and layers are ours.
        build(Tools(_diagnose, partial(metrics.looked_up, "mcp")))._lowlevel_server,
        json_response=True,
        stateless=True,
        security_settings=_security(settings),
        max_request_body_size=int(settings.max_body_bytes),
    )


def _security(settings: Settings) -> TransportSecuritySettings:
    """On loopback, only requests to it by name: a page elsewhere may have its own name lead there."""
    from mcp.server.transport_security import TransportSecuritySettings

    if not is_loopback(settings.host) or settings.has_keys:
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    names = ["127.0.0.1", "localhost", "[::1]", settings.host]
    hosts = [*names, *(f"{name}:*" for name in names)]
    if settings.public_url:
        hosts.append(urlsplit(settings.public_url).netloc)
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


async def _diagnose(body: bytes, request: Request) -> dict[str, Any]:
    """As POST /api/diagnose answers, with the same limits."""
    caller = caller_of(request)
    if not caller.may(Permission.DIAGNOSE):
        raise Forbidden(
            f"The key {caller.name} does not have the scope diagnose."
            if caller.name
            else "This needs a key with the scope diagnose."
        )
    question = replace(await read_question(body), owner=caller.name)
    if question.level != "checks":
        await run_in_threadpool(quotas_of(request).admit, caller)
    answer = await jobs_of(request).answer(question, caller.name)
    return answer.model_dump(by_alias=True, mode="json")


ROUTE = Route("/mcp", Endpoint(), include_in_schema=False)
router = APIRouter(lifespan=lifespan)
router.routes.append(ROUTE)

"""The busiest addresses, answered before the framework looks for their route among all others.

A handler marked with `express` takes the request, and the last part of the path where its route has one; what
stands in the query it reads itself. It stays a route like any other: documented, tested, and what answers
whenever the path is not plain.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.problems import on_http
from app.http.urls import path_of

Handler = Callable[..., Awaitable[Response]]
F = TypeVar("F", bound=Handler)

_MARK = "__express__"
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def express(handler: F) -> F:
    """Mark a handler whose route may be taken directly."""
    setattr(handler, _MARK, True)
    return handler


class Express:
    """Innermost before the framework, so that all that is around it holds here too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._whole: dict[tuple[str, str], Any] | None = None
        self._beginnings: dict[tuple[str, str], Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["query_string"]:
            path = path_of(scope)
            method = scope["method"]
            route = self._routes(scope["app"]).get((method, path))
            parameters: tuple[str, ...] = ()
            if route is None:
                beginning, _, last = path.rpartition("/")
                route = self._beginnings.get((method, beginning))
                parameters = (last,)
                if route is not None and not _PLAIN.fullmatch(last):
                    route = None
            if route is not None:
                await self._answer(route, parameters, scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _answer(
        self, route: Any, parameters: tuple[str, ...], scope: Scope, receive: Receive, send: Send
    ) -> None:
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response = await cast(Handler, route.endpoint)(request, *parameters)
        except HTTPException as error:
            response = await on_http(request, error)
        await response(scope, receive, send)

    def _routes(self, app: FastAPI) -> dict[tuple[str, str], Any]:
        """The marked routes by method and path, found at the first request."""
        if self._whole is None:
            whole: dict[tuple[str, str], Any] = {}
            for route in iter_route_contexts(app.routes):
                if not getattr(getattr(route, "endpoint", None), _MARK, False):
                    continue
                beginning, brace, rest = str(route.path_format).partition("/{")
                for method in route.methods or ():
                    if not brace:
                        whole[method, beginning] = route
                    elif rest.endswith("}") and "{" not in rest and "/" not in rest:
                        self._beginnings[method, beginning] = route
            self._whole = whole
        return self._whole

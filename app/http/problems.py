"""From exceptions to problem documents: the one place that answers with anything but success."""

from __future__ import annotations

import logging
from typing import cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import PROBLEM_JSON, Fault, InternalError, MethodNotAllowed, Problem, from_http
from app.http.bodies import invalid, pointer
from app.http.negotiation import preferred
from app.http.text import json_bytes, scrub
from app.http.urls import absolute, link, route_path
from app.pages.rendering import render

# Under these a program is listening, whatever it says that it accepts.
DATA_PATHS = ("/api/", "/mcp", "/data/", "/healthz", "/readyz", "/metrics", "/openapi.json")

log = logging.getLogger("faultbook.problems")


def install(app: FastAPI) -> None:
    """Our handlers in place of the framework's; unexpected exceptions are `CatchAll`'s."""
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_validation)


def respond(request: Request, problem: Problem) -> Response:
    """`problem` as application/problem+json, or as a page where a person with a browser asked for a page."""
    path = route_path(request)
    document = problem.document(base=absolute(request, ""), instance=link(request, path))
    headers = {"Cache-Control": "no-store", **(problem.headers or {})}
    if not path.startswith(DATA_PATHS):
        headers["Vary"] = "Accept"
        if preferred(request, "application/json", "text/html") == "text/html":
            return render(
                request,
                "problem.html",
                problem=document,
                twin=path,
                status_code=problem.status,
                headers=headers,
            )
    return Response(json_bytes(document), problem.status, headers, PROBLEM_JSON)


async def on_http(request: Request, error: Exception) -> Response:
    problem = from_http(cast(HTTPException, error))
    if isinstance(problem, MethodNotAllowed):
        allowed = ", ".join(sorted(methods(request)))
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": allowed})
        problem.headers = {**(problem.headers or {}), "Allow": allowed}
    return respond(request, problem)


async def on_validation(request: Request, error: Exception) -> Response:
    error = cast(RequestValidationError, error)
    found = list(error.errors())
    in_body = [{**item, "loc": item["loc"][1:]} for item in found if item["loc"][0] == "body"]
    faults = [
        Fault(pointer(item["loc"][1:]), scrub(item["msg"]), str(item["loc"][0]))
        for item in found
        if item["loc"][0] != "body"
    ]
    problem = invalid(cast(list[ErrorDetails], in_body), error.body, others=faults)
    return respond(request, problem)


def methods(request: Request) -> set[str]:
    """Every method that the request's path has: the framework names those of one route only."""
    found = {"OPTIONS"}
    for route in iter_route_contexts(request.app.routes):
        matcher = getattr(route, "path_regex", None)
        if matcher is not None and matcher.match(route_path(request)):
            found |= route.methods or {"GET"}
    return found | {"HEAD"} if "GET" in found else found


class CatchAll:
    """Any exception that nobody handled becomes a 500 problem: logged with its trace, answered without it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            log.info("the client left before its request was read")
        except Exception:
            if started:
                raise  # half an answer is out: only closing the connection can say that it is not whole
            log.exception("unexpected error")
            request = Request(scope, receive)
            problem = InternalError(f"The log has the cause under request id {request.state.request_id}.")
            await respond(request, problem)(scope, receive, send)

"""What operators and crawlers ask: is it alive, is it ready, what does it count, what is here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder
from starlette.concurrency import run_in_threadpool

from app.errors import Unavailable, described
from app.http.express import express
from app.http.metrics import metrics_of
from app.http.text import without_places
from app.http.urls import absolute

router = APIRouter(tags=["operators"])

NOT_STORED = {"Cache-Control": "no-store"}


@dataclass(frozen=True)
class Readiness:
    """The state of one part. A part that is not `required` is reported and keeps nobody from being served."""

    ready: bool
    required: bool = True
    detail: str = ""


Probe = Callable[[], Readiness]


def probes(app: FastAPI) -> dict[str, Probe]:
    """What /readyz asks, by name: a part adds itself when it starts."""
    return cast(dict[str, Probe], app.state.readiness)


@router.get("/healthz", summary="Whether the process is alive")
@express
async def healthz(request: Request) -> Response:
    return Response(b'{"status":"alive"}', media_type="application/json")


@router.get("/readyz", summary="Whether the service can answer", responses=described(Unavailable))
async def readyz(request: Request, response: Response) -> dict[str, Any]:
    found = {name: _told(probe()) for name, probe in probes(request.app).items()}
    waiting = sorted(name for name, state in found.items() if state.required and not state.ready)
    if waiting:
        raise Unavailable(f"Not ready: {', '.join(waiting)}.", retry_after=1, members={"parts": found})
    response.headers.update(NOT_STORED)
    return {"status": "ready", "parts": found}


def _told(state: Readiness) -> Readiness:
    return replace(state, detail=without_places(state.detail))


@router.get("/metrics", summary="Prometheus metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    # Aside: the jobs' store is asked.
    told = await run_in_threadpool(encode, metrics_of(request).registry)
    return Response(told, headers={"Content-Type": content_type, **NOT_STORED})


@router.get("/robots.txt", include_in_schema=False)
async def robots() -> Response:
    return PlainTextResponse("User-agent: *\nDisallow: /api/\n")


@router.get("/llms.txt", include_in_schema=False)
async def llms(request: Request) -> Response:
    """The API for a language model, made from the OpenAPI document: always what is served."""
    document = request.app.openapi()
    lines = [f"# {document['info']['title']}", "", f"> {document['info']['summary']}", "", "## API", ""]
    lines += [
        f"- {method.upper()} {absolute(request, path)}: {operation.get('summary', '')}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    lines += [
        "",
        "## Details",
        "",
        f"- [OpenAPI 3.1]({absolute(request, '/openapi.json')})",
        f"- Model Context Protocol, streamable HTTP: {absolute(request, '/mcp')}",
        "",
    ]
    return PlainTextResponse("\n".join(lines), headers={"Cache-Control": "public, max-age=60"})

"""GET /api/search, POST /api/match, GET /api/repos."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from app.errors import ContentTooLarge, Fault, InvalidRequest, UnsupportedMediaType, described
from app.http.bodies import decode, malformed, media_type, parse_json, read_bytes, request_body
from app.http.caching import json_response
from app.http.metrics import metrics_of
from app.http.text import json_bytes
from app.http.urls import absolute
from app.lookup import schemas, service
from app.lookup.schemas import MatchRequest

router = APIRouter(tags=["lookup"])

SHORT = 2048
"""Characters of a query that are searched for in less time than handing them to a thread takes."""

_REQUEST = TypeAdapter(MatchRequest)


@router.get(
    "/api/search",
    summary="Records that an error code, a message or words of one mean",
    responses={200: {"model": schemas.SearchAnswer}, **described(InvalidRequest)},
)
async def search(
    request: Request,
    q: Annotated[str, Query(description="what to search for")] = "",
    message: Annotated[str, Query(description="the same under the public service's other name")] = "",
    repo: Annotated[str, Query(description="only records of this repository")] = "",
    limit: Annotated[int, Query(ge=1, le=25)] = service.SEARCH_LIMIT,
) -> Response:
    query = q or message
    if not query.strip():
        fault = Fault("/q", "missing: what to search for, as q or message", "query")
        raise InvalidRequest("The request has one fault.", faults=[fault])
    began = perf_counter()
    ask = partial(service.search, query, repo=repo or None, limit=limit, link=partial(absolute, request))
    answer = ask() if len(query) <= SHORT else await run_in_threadpool(ask)
    metrics_of(request).looked_up("search", service.tier(answer), perf_counter() - began)
    # What is searched for may be private: no shared cache keeps the answer.
    return json_response(request, json_bytes(answer), cache_control="private, max-age=60")


@router.post(
    "/api/match",
    summary="Records of the errors in a text: a line, a traceback or a whole log",
    responses={
        200: {"model": schemas.MatchAnswer},
        **described(ContentTooLarge, UnsupportedMediaType, InvalidRequest),
    },
    openapi_extra=request_body(json=_REQUEST, plain={"type": "string", "minLength": 1}),
)
async def match(request: Request) -> Response:
    asked = await _asked(request)
    began = perf_counter()
    answer = await run_in_threadpool(
        service.match_text,
        asked.text,
        repo=asked.repo,
        packages=asked.packages,
        limit=asked.limit,
        link=partial(absolute, request),
    )
    metrics_of(request).looked_up("match", service.tier(answer), perf_counter() - began)
    return Response(json_bytes(answer), media_type="application/json", headers={"Cache-Control": "no-store"})


@router.get(
    "/api/repos", summary="Repositories that have records", responses={200: {"model": schemas.ReposAnswer}}
)
async def repos(request: Request) -> Response:
    return json_response(request, json_bytes(service.repositories()))


async def _asked(request: Request) -> MatchRequest:
    body = await read_bytes(request, "text/plain", "application/json")
    if media_type(request)[0] != "text/plain":
        return parse_json(body, _REQUEST)
    if not body:
        raise malformed("The body is empty; a text is expected.")
    return MatchRequest(text=decode(body))

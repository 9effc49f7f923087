"""GET /api/errors, /api/errors/{id} and its Markdown, /schema.json."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import cache
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.errors import BadRequest, Fault, InvalidRequest, NotFound, described
from app.http.caching import Representation, json_response
from app.http.express import express
from app.http.negotiation import preferred
from app.http.text import json_bytes
from app.http.urls import absolute
from app.operators import Readiness, probes
from app.records import schemas, service
from catalog import current
from catalog.current import library
from catalog.match.user_regex import BadPattern, TooCostly
from catalog.record import schema


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Read the records and snapshots, and index them, before the first request."""
    reader = current.use(app.state.settings.data, app.state.settings.notes)
    known = reader.get()
    known.catalog.complete()
    _ = known.dataset_version
    probes(app)["catalog"] = lambda: _catalog_state(reader)
    try:
        yield
    finally:
        current.use(None)


def _catalog_state(reader: current.Current) -> Readiness:
    known = reader.get()
    parts = [f"{len(known.catalog.records)} curated records", f"{len(known.snapshots)} snapshots"]
    return Readiness(ready=True, detail=", ".join([*parts, known.dataset_version, *reader.problems]))


router = APIRouter(tags=["records"], lifespan=lifespan)

Identifier = Annotated[str, Path(description="16 lowercase hexadecimal digits", max_length=200)]
View = Annotated[Literal["full"] | None, Query(description="full: with the key `x`, our additions")]


@router.get(
    "/api/errors",
    summary="Records that fulfil criteria",
    responses={**schemas.answer(schemas.LIST), **described(BadRequest, InvalidRequest)},
)
async def list_errors(request: Request, query: Annotated[schemas.RecordQuery, Query()]) -> Response:
    known = library()
    try:
        # A regular expression may be searched in a hundred thousand messages.
        found = await run_in_threadpool(known.select, query.filters)
        shown, after = known.page(found, query.cursor, query.limit)
    except BadPattern as error:
        raise BadRequest(
            f"regex: {error}.",
            faults=[Fault("/regex", str(error), "query")],
            members={"position": error.position},
        ) from None
    except TooCostly as error:
        raise InvalidRequest(f"regex: {error}.", faults=[Fault("/regex", str(error), "query")]) from None
    except KeyError:
        detail = "not a cursor of this service: take it from the Link header"
        raise InvalidRequest(f"cursor: {detail}.", faults=[Fault("/cursor", detail, "query")]) from None
    headers = {}
    if after is not None:
        following = urlencode(query.parameters(cursor=after))
        headers["Link"] = f'<{absolute(request, "/api/errors")}?{following}>; rel="next"'
    body = {
        "errors": [service.summary(record) for record in shown],
        "total": found.total,
        "datasetVersion": known.dataset_version,
    }
    return json_response(request, json_bytes(body), headers=headers)


@router.get(
    "/api/errors/{record_id}.md",
    summary="One record as Markdown",
    responses={**schemas.answer({"type": "string"}, "text/markdown"), **described(NotFound)},
)
async def one_error_markdown(request: Request, record_id: Identifier) -> Response:
    return _stored(record_id, "markdown").respond(request)


@router.get(
    "/api/errors/{record_id}",
    summary="One record",
    responses={**schemas.answer(schemas.ONE), **described(NotFound, InvalidRequest)},
)
@express
async def one_error(request: Request, record_id: Identifier, view: View = None) -> Response:
    if preferred(request, "application/json", "text/markdown") == "text/markdown":
        return _stored(record_id, "markdown").respond(request, vary="Accept")
    return _stored(record_id, "full" if view else "record").respond(request, vary="Accept")


@router.get(
    "/api/diff",
    summary="Messages that appeared, changed, moved or vanished between two versions of a package",
    responses={**schemas.answer(schemas.DIFFERENCE), **described(NotFound, InvalidRequest)},
)
async def diff(
    request: Request,
    package: Annotated[str, Query(max_length=200, description="name of the package")],
    before: Annotated[str, Query(alias="from", max_length=200, description="its older version")],
    after: Annotated[str, Query(alias="to", max_length=200, description="its newer version")],
) -> Response:
    known = library()
    try:
        body = await run_in_threadpool(service.difference, known, package, before, after)
    except service.NotIndexed as error:
        raise NotFound(f"{error}.") from None
    return json_response(request, json_bytes({**body, "datasetVersion": known.dataset_version}))


@router.get(
    "/data/manifest.json",
    summary="Snapshots that are served, with their checksums",
    responses=schemas.answer(schemas.MANIFEST),
)
async def manifest(request: Request) -> Response:
    known = library()
    files = [asdict(held) for held in known.held]
    return json_response(request, json_bytes({"files": files, "datasetVersion": known.dataset_version}))


@router.get("/schema.json", summary="JSON Schema of a record", responses=schemas.answer({"type": "object"}))
async def record_schema(request: Request) -> Response:
    return _schema().respond(request)


def _stored(identifier: str, form: service.Form) -> Representation:
    found = service.representation(library(), identifier, form)
    if found is None:
        raise NotFound("No record has this id.")
    return found


@cache
def _schema() -> Representation:
    return Representation(json_bytes(schema()))

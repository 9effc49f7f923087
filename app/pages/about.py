"""Pages about the service itself: what each problem means, and its API from the OpenAPI document."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from fastapi import APIRouter, Request, Response

from app.errors import NotFound, Problem
from app.http.caching import PUBLIC, Representation, json_response
from app.http.negotiation import preferred
from app.http.text import json_bytes
from app.http.urls import absolute
from app.pages.rendering import FOLDER, render

router = APIRouter(include_in_schema=False)

STATIC_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@router.get("/about/problems.json")
async def problems_data(request: Request) -> Response:
    return json_response(request, json_bytes({"problems": [_document(request, kind) for kind in _kinds()]}))


@router.get("/about/problems")
async def problems_page(request: Request) -> Response:
    twin = "/about/problems.json"
    return render(request, "problems.html", kinds=_kinds(), twin=twin, headers={"Cache-Control": PUBLIC})


@router.get("/about/problems/{slug}.json")
async def problem_data(request: Request, slug: str) -> Response:
    return json_response(request, json_bytes(_document(request, _kind(slug))))


@router.get("/about/problems/{slug}")
async def problem_page(request: Request, slug: str) -> Response:
    if preferred(request, "text/html", "application/json") == "application/json":
        return await problem_data(request, slug)
    kind = _kind(slug)
    twin = f"/about/problems/{kind.slug}.json"
    headers = {"Cache-Control": PUBLIC, "Vary": "Accept"}
    return render(request, "problem_kind.html", kind=kind, twin=twin, headers=headers)


@router.get("/docs")
async def docs(request: Request) -> Response:
    document = request.app.openapi()
    return render(
        request,
        "docs.html",
        document=document,
        pretty=_pretty,
        twin="/openapi.json",
        headers={"Cache-Control": PUBLIC},
    )


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    found = _static_files().get(name)
    if found is None:
        raise NotFound("There is no such file.")
    return found.respond(request)


@cache
def _static_files() -> dict[str, Representation]:
    """The folder's files by name, read once: a request never reaches the file system."""
    return {
        path.name: Representation(path.read_bytes(), STATIC_TYPES[path.suffix])
        for path in (FOLDER / "static").iterdir()
        if path.suffix in STATIC_TYPES
    }


def _kinds() -> list[type[Problem]]:
    return sorted(Problem.kinds.values(), key=lambda kind: (kind.status, kind.slug))


def _document(request: Request, kind: type[Problem]) -> dict[str, Any]:
    return {
        "type": absolute(request, f"/about/problems/{kind.slug}"),
        "title": kind.title,
        "status": kind.status,
        "description": kind.explanation(),
    }


def _kind(slug: str) -> type[Problem]:
    try:
        return Problem.kinds[slug]
    except KeyError:
        raise NotFound("There is no such type of problem.") from None


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)

"""/sitemap.xml: the pages worth finding."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fastapi import APIRouter, Request, Response

from app.http.caching import Representation
from app.http.urls import absolute
from app.lookup.service import path_of
from app.pages.rendering import environment
from catalog.current import library
from kernels.registry import operations

router = APIRouter()

MOST = 50_000
"""Addresses that the sitemap protocol allows in one file."""


@router.get("/sitemap.xml")
async def sitemap(request: Request) -> Response:
    """Addresses are whole where PUBLIC_URL is set: the Host header of a request is nobody's word for it."""
    addresses = [absolute(request, path) for path in islice(paths(), MOST)]
    text = environment.get_template("sitemap.xml").render(addresses=addresses)
    return Representation(text.encode(), "application/xml").respond(request)


def paths() -> Iterator[str]:
    """Operations first, should records ever be too many."""
    yield from ("/", "/operations")
    yield from (f"/operations/{name}" for name in operations())
    # Curated records alone: what is read off a source has nothing in it that the source has not.
    yield from (path_of(found) for found in library().catalog.records)
